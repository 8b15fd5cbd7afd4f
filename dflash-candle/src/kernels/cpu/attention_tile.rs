//! The inner loops of attention: scores, exponentials, weighted sums of values.

use super::isa::{Isa, Kernel};
use super::math::{exp, pad};
use super::simd::{LANES, Simd};
use super::tile::{F32, Operands, block, packed_len};

/// Products of packed query rows with keys that lie `stride` numbers apart.
pub(crate) struct Scores<'a> {
    /// Packed rows.
    pub(crate) q: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) keys: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) dim: usize,
    /// Number of keys.
    pub(crate) count: usize,
    /// One line of `count` scores per query row, `out_stride` apart.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_stride: usize,
}

impl Scores<'_> {
    pub(crate) fn compute(self, isa: Isa) {
        if self.rows <= 2 {
            isa.run(ScoresKernel::<true>(self))
        } else {
            isa.run(ScoresKernel::<false>(self))
        }
    }
}

struct ScoresKernel<'a, const NARROW: bool>(Scores<'a>);

impl<const NARROW: bool> Kernel for ScoresKernel<'_, NARROW> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scores {
            q,
            rows,
            keys,
            stride,
            dim,
            count,
            out,
            out_stride,
        } = self.0;
        if rows == 0 || count == 0 {
            return;
        }
        assert!(
            q.len() >= rows * packed_len(dim),
            "invariant: packed queries are complete"
        );
        assert!(
            keys.len() >= (count - 1) * stride + dim,
            "invariant: keys lie inside their slice"
        );
        assert!(
            out.len() >= (rows - 1) * out_stride + count && count <= out_stride,
            "invariant: scores fit"
        );
        let at = Operands {
            x: q.as_ptr(),
            w: keys.as_ptr().cast(),
            w_stride: stride * size_of::<f32>(),
            inner: dim,
            bias: None,
            out: out.as_mut_ptr(),
            out_stride,
        };
        // SAFETY: the three checks above; `out` is borrowed exclusively.
        unsafe { block::<S, F32, NARROW>(s, at, rows, count) };
    }
}

/// Turns a row's scores into exponentials of their distance to the maximum and returns their sum.
///
/// The scores may lie in two pieces; the sum sees them as one line.
pub(crate) struct Exponentials<'a> {
    pub(crate) first: &'a mut [f32],
    pub(crate) second: &'a mut [f32],
}

impl Kernel for Exponentials<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let max = largest(s, self.second, largest(s, self.first, f32::NEG_INFINITY));
        exponentials(s, self.first, max);
        exponentials(s, self.second, max);
        let mut lanes = [0.0; LANES];
        add_to_lanes(s, self.first, 0, &mut lanes);
        add_to_lanes(s, self.second, self.first.len() % LANES, &mut lanes);
        s.sum(s.load(&lanes))
    }
}

#[inline(always)]
fn largest<S: Simd>(s: S, x: &[f32], start: f32) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut max = s.splat(start);
    for chunk in whole {
        max = s.max(s.load(chunk), max);
    }
    let mut lanes = [0.0; LANES];
    s.store(&mut lanes, max);
    let mut max = start;
    for x in lanes.iter().chain(rest) {
        max = if *x > max { *x } else { max };
    }
    max
}

#[inline(always)]
fn exponentials<S: Simd>(s: S, x: &mut [f32], max: f32) {
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    for chunk in whole {
        let v = exp(s, s.sub(s.load(chunk), s.splat(max)));
        s.store(chunk, v);
    }
    if !rest.is_empty() {
        let mut padded = pad(rest);
        let v = exp(s, s.sub(s.load(&padded), s.splat(max)));
        s.store(&mut padded, v);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// Adds numbers to the lanes in turn, the first one to lane `phase`.
#[inline(always)]
fn add_to_lanes<S: Simd>(s: S, x: &[f32], phase: usize, lanes: &mut [f32; LANES]) {
    let head = if phase == 0 {
        0
    } else {
        (LANES - phase).min(x.len())
    };
    for (lane, x) in lanes[phase..].iter_mut().zip(&x[..head]) {
        *lane += x;
    }
    let (whole, rest) = x[head..].as_chunks::<LANES>();
    let mut acc = s.load(lanes);
    for chunk in whole {
        acc = s.add(acc, s.load(chunk));
    }
    s.store(lanes, acc);
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
}

/// Adds weighted values, key by key, to the accumulators of a few query rows.
pub(crate) struct Weigh<'a> {
    /// `count` weights per row, rows `keys` apart.
    pub(crate) weights: &'a [f32],
    pub(crate) keys: usize,
    /// Number of keys.
    pub(crate) count: usize,
    /// Values of the first key, of width `dim`; the next key's are `stride` further.
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) dim: usize,
    /// Accumulators, `acc_stride` per row: `dim` rounded up to whole vectors.
    pub(crate) acc: &'a mut [f32],
    pub(crate) acc_stride: usize,
}

impl Kernel for Weigh<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.acc.len() / self.acc_stride.max(1);
        if rows == 0 || self.count == 0 {
            return;
        }
        assert!(
            self.weights.len() >= (rows - 1) * self.keys + self.count,
            "invariant: a weight per key and row"
        );
        assert!(
            self.values.len() >= (self.count - 1) * self.stride + self.dim,
            "invariant: values lie inside their slice"
        );
        assert!(
            self.acc_stride >= self.dim.next_multiple_of(LANES),
            "invariant: accumulators are whole vectors"
        );
        let at = Pointers {
            weights: self.weights.as_ptr(),
            keys: self.keys,
            count: self.count,
            values: self.values.as_ptr(),
            stride: self.stride,
            acc: self.acc.as_mut_ptr(),
            acc_stride: self.acc_stride,
        };
        let mut column = 0;
        // SAFETY: in every call `column + C * LANES <= dim` and the rows exist, by the checks above.
        unsafe {
            while S::NARROW_COLS == 8 && rows <= 2 && self.dim - column >= 8 * LANES {
                weigh_rows::<S, 8>(s, at, rows, column);
                column += 8 * LANES;
            }
            while S::TILE_COLS >= 4 && self.dim - column >= 4 * LANES {
                weigh_rows::<S, 4>(s, at, rows, column);
                column += 4 * LANES;
            }
            while S::TILE_COLS >= 2 && self.dim - column >= 2 * LANES {
                weigh_rows::<S, 2>(s, at, rows, column);
                column += 2 * LANES;
            }
            while self.dim - column >= LANES {
                weigh_rows::<S, 1>(s, at, rows, column);
                column += LANES;
            }
        }
        if column < self.dim {
            for (r, acc) in self.acc.chunks_exact_mut(self.acc_stride).enumerate() {
                let weights = &self.weights[r * self.keys..][..self.count];
                weigh_rest(
                    s,
                    weights,
                    &self.values[column..],
                    self.stride,
                    self.dim - column,
                    &mut acc[column..],
                );
            }
        }
    }
}

/// The operands of [`Weigh`], for the tiles.
#[derive(Clone, Copy)]
struct Pointers {
    weights: *const f32,
    keys: usize,
    count: usize,
    values: *const f32,
    stride: usize,
    acc: *mut f32,
    acc_stride: usize,
}

/// The last, incomplete vector of one row.
#[inline(always)]
fn weigh_rest<S: Simd>(
    s: S,
    weights: &[f32],
    values: &[f32],
    stride: usize,
    width: usize,
    acc: &mut [f32],
) {
    let Some(acc) = acc.first_chunk_mut::<LANES>() else {
        return;
    };
    let mut sum = s.load(acc);
    for (key, weight) in weights.iter().enumerate() {
        let v = s.load(&pad(&values[key * stride..][..width]));
        sum = s.fma(s.splat(*weight), v, sum);
    }
    s.store(acc, sum);
}

/// All rows against `C` vectors of the values.
///
/// # Safety
/// The pointers must reach `rows` rows, `count` keys, and `column + C * LANES` numbers of each.
#[inline(always)]
unsafe fn weigh_rows<S: Simd, const C: usize>(s: S, at: Pointers, rows: usize, column: usize) {
    let mut row = 0;
    // SAFETY: in every call `row + R <= rows`.
    unsafe {
        while C <= 4 && S::TILE_ROWS >= 4 && rows - row >= 4 {
            weigh_tile::<S, 4, C>(s, at, row, column);
            row += 4;
        }
        while C <= 4 && S::TILE_ROWS >= 2 && rows - row >= 2 {
            weigh_tile::<S, 2, C>(s, at, row, column);
            row += 2;
        }
        while row < rows {
            weigh_tile::<S, 1, C>(s, at, row, column);
            row += 1;
        }
    }
}

/// One register tile over all keys.
///
/// # Safety
/// As for [`weigh_rows`], with `row + R` rows.
#[inline(always)]
unsafe fn weigh_tile<S: Simd, const R: usize, const C: usize>(
    s: S,
    at: Pointers,
    row: usize,
    column: usize,
) {
    let mut acc = [[s.splat(0.0); C]; R];
    // SAFETY: rows, keys and columns exist, says the caller.
    unsafe {
        let to = at.acc.add(row * at.acc_stride + column);
        for r in 0..R {
            for c in 0..C {
                acc[r][c] = s.load(&*to.add(r * at.acc_stride + c * LANES).cast::<[f32; LANES]>());
            }
        }
        let weights = at.weights.add(row * at.keys);
        let values = at.values.add(column);
        for key in 0..at.count {
            let mut v = [s.splat(0.0); C];
            for c in 0..C {
                v[c] = s.load(
                    &*values
                        .add(key * at.stride + c * LANES)
                        .cast::<[f32; LANES]>(),
                );
            }
            for r in 0..R {
                let weight = s.splat(*weights.add(r * at.keys + key));
                for c in 0..C {
                    acc[r][c] = s.fma(weight, v[c], acc[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                s.store(
                    &mut *to.add(r * at.acc_stride + c * LANES).cast::<[f32; LANES]>(),
                    acc[r][c],
                );
            }
        }
    }
}
