//! CPU kernels whose results do not depend on how the work is cut.
//!
//! **Row invariance.** Every kernel computes a row, and each of its elements, in an order that
//! depends on the inner dimension (and, for attention, on the row's own visible keys) only. The
//! number of rows in the call, chunking, thread count, position in a buffer and the capacity of
//! that buffer never change a bit. Decoding, verification of a block and prefill therefore agree
//! exactly, which is what makes speculative output identical to plain output by construction.
//!
//! Activations are `f32`, row-major. Weights stay in their file's format and are widened in
//! registers, packed ones a few rows at a time. Shapes are checked on entry with `assert!`: callers validate user data, so a failing
//! check is a bug of the caller, and the checks are what the `unsafe` code inside relies on.

mod attention;
mod attention_tile;
mod codes;
mod conv;
mod embedding;
mod gated_delta;
mod isa;
mod linear;
mod math;
mod matrix;
mod moe;
mod norm;
mod packing;
mod part;
mod pool;
mod rope;
mod scratch;
mod select;
mod sight;
mod simd;
mod tile;

#[cfg(test)]
mod testing;

pub use attention::{Attention, KeysValues, attention};
pub use codes::{Affine, Codes, SmallFloats};
pub use conv::{DynamicKernel, dynamic_conv, short_conv};
pub use embedding::embedding;
pub use gated_delta::{GatedDelta, GatedDeltaRows, MAX_KEY_DIM, gated_delta};
pub use isa::Isa;
pub use linear::{glu, linear};
pub use math::{
    Activation, add, exp_in_place, gelu_in_place, glu_in_place, mul, sigmoid_gate_in_place,
    sigmoid_in_place, silu_in_place, softplus, tanh_in_place,
};
pub use matrix::Matrix;
pub use moe::{Expert, Routes, moe};
pub use norm::{gated_rms_norm, rms_norm};
pub use pool::Pool;
pub use rope::{HeadNorm, Heads, Rotation, norm_rope};
pub use select::{Best, all_finite, argmax, top_k};
#[cfg(test)]
pub(crate) use sight::Sight;
pub use sight::Visible;

/// Multiply-adds below which waking other threads costs more than it saves.
const PARALLEL_WORK: usize = 60_000;
/// Tasks per thread. One: claiming a task costs as much as a small product, and a thread that is late finds its task claimed by another.
const TASKS_PER_THREAD: usize = 1;

/// What every kernel runs on: an instruction set and threads. Belongs to one engine.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

impl Cpu {
    /// The fastest instruction set with `threads` threads, the caller included.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(Isa::detect(), threads)
    }

    /// A chosen instruction set with `threads` threads, the caller included.
    pub fn with_isa(isa: Isa, threads: usize) -> Self {
        Self {
            isa,
            pool: Pool::new(threads),
        }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// In how many tasks work of `cost` multiply-adds is worth being cut.
    fn tasks(&self, cost: usize) -> usize {
        if self.pool.threads() == 1 || cost < PARALLEL_WORK {
            1
        } else {
            self.pool.threads() * TASKS_PER_THREAD
        }
    }

    /// Calls `task` with contiguous ranges that cover `0..items`, each but the last a multiple of
    /// `granule` long, in parallel if `cost` multiply-adds are worth it.
    fn split(
        &self,
        items: usize,
        granule: usize,
        cost: usize,
        task: impl Fn(std::ops::Range<usize>) + Sync,
    ) {
        let step = items
            .div_ceil(self.tasks(cost))
            .next_multiple_of(granule.max(1))
            .max(1);
        self.pool.run(items.div_ceil(step), &|i| {
            task(i * step..((i + 1) * step).min(items))
        });
    }
}

/// Memory of `len` numbers that tasks fill. It is not cleared first: that would pull every line into
/// this thread's cache, and the other threads' tasks would have to fetch theirs from there.
///
/// # Safety
/// `fill` must write every number.
unsafe fn filled<R>(len: usize, fill: impl FnOnce(Shared<'_>) -> R) -> (Vec<f32>, R) {
    let mut out = Vec::with_capacity(len);
    let result = fill(Shared::unfilled(&mut out.spare_capacity_mut()[..len]));
    // SAFETY: the capacity is there, and the caller vouches for the numbers.
    unsafe { out.set_len(len) };
    (out, result)
}

/// A slice that tasks write in disjoint parts.
#[derive(Clone, Copy)]
struct Shared<'a> {
    start: *mut f32,
    len: usize,
    borrow: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for an exclusive borrow of plain numbers; whoever reaches into it from several
// threads promises disjoint parts.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn new(slice: &'a mut [f32]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: std::marker::PhantomData,
        }
    }

    /// Memory without numbers yet, which tasks fill.
    fn unfilled(slice: &'a mut [std::mem::MaybeUninit<f32>]) -> Self {
        Self {
            start: slice.as_mut_ptr().cast(),
            len: slice.len(),
            borrow: std::marker::PhantomData,
        }
    }

    /// One part of the slice.
    ///
    /// # Safety
    /// No other reference to any element of the part may be alive, and its numbers must have been
    /// written before.
    #[inline(always)]
    unsafe fn part(&self, range: std::ops::Range<usize>) -> &'a mut [f32] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "invariant: a task stays inside its output"
        );
        // SAFETY: inside the borrowed slice, and the caller vouches for exclusiveness.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start)
        }
    }

    /// Writes numbers from place `at` on.
    ///
    /// # Safety
    /// No reference to any of those places may be alive.
    #[inline(always)]
    unsafe fn write(&self, at: usize, numbers: &[f32]) {
        assert!(
            at <= self.len && numbers.len() <= self.len - at,
            "invariant: a task stays inside its output"
        );
        // SAFETY: inside the borrowed slice, and the caller vouches for exclusiveness.
        unsafe {
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), self.start.add(at), numbers.len());
        }
    }
}
