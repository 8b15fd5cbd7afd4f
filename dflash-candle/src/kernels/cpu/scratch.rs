//! Aligned working memory that is reused from call to call.

use std::cell::Cell;

use super::simd::LANES;

/// One cache line of numbers, aligned like one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

thread_local! {
    static SPARE: Cell<Vec<Vec<Line>>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with at least `len` numbers of this thread's scratch memory, rounded up to whole
/// cache lines. Their content is whatever an earlier use left. Nesting gives separate memory.
pub(crate) fn with_scratch<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut spares = SPARE.take();
    let mut lines = spares.pop().unwrap_or_default();
    SPARE.set(spares);
    let count = len.div_ceil(LANES);
    if lines.len() < count {
        lines.resize(count, Line([0.0; LANES]));
    }
    // SAFETY: `Line` is exactly `LANES` numbers (its size equals its alignment), so the memory of
    // `count` of them is that of `count * LANES` numbers, borrowed exclusively for the call.
    let numbers =
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<f32>(), count * LANES) };
    let result = work(numbers);
    let mut spares = SPARE.take();
    spares.push(lines);
    SPARE.set(spares);
    result
}
