//! The inner loops of matrix products: register tiles of a few rows by a few columns.
//!
//! One sixteen-lane accumulator per output element runs over the whole inner dimension in blocks of
//! 32, whatever the tile's shape, and is summed by one fixed tree at the end. So all tile shapes
//! agree bit for bit, and the choice among them is free.

use super::isa::Kernel;
use super::simd::{LANES, Simd};

/// Inner-dimension numbers per step: two vectors, because two bf16 numbers share 32 bits.
pub(crate) const STEP: usize = 2 * LANES;

/// A storage format of weights.
pub(crate) trait Format {
    /// Bytes per number.
    const BYTES: usize;
    /// Whether [`Format::load`] returns even and odd places instead of halves.
    const INTERLEAVED: bool;

    /// Widens 32 numbers.
    ///
    /// # Safety
    /// `at` must be readable for `32 * BYTES` bytes.
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> (S::V, S::V);
}

/// IEEE single precision.
pub(crate) struct F32;
/// bfloat16.
pub(crate) struct Bf16;
/// IEEE half precision.
pub(crate) struct F16;

impl Format for F32 {
    const BYTES: usize = 4;
    const INTERLEAVED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> (S::V, S::V) {
        // SAFETY: 128 bytes are readable, says the caller; byte arrays need no alignment.
        let (a, b) = unsafe { (&*at.cast::<[u8; 64]>(), &*at.add(64).cast::<[u8; 64]>()) };
        (s.load_f32_bytes(a), s.load_f32_bytes(b))
    }
}

impl Format for Bf16 {
    const BYTES: usize = 2;
    const INTERLEAVED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> (S::V, S::V) {
        // SAFETY: 64 bytes are readable, says the caller; byte arrays need no alignment.
        s.load_bf16_pair(unsafe { &*at.cast::<[u8; 64]>() })
    }
}

impl Format for F16 {
    const BYTES: usize = 2;
    const INTERLEAVED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> (S::V, S::V) {
        // SAFETY: 64 bytes are readable, says the caller; byte arrays need no alignment.
        let (a, b) = unsafe { (&*at.cast::<[u8; 32]>(), &*at.add(32).cast::<[u8; 32]>()) };
        (s.load_f16(a), s.load_f16(b))
    }
}

/// The length of a packed row: whole steps.
pub(crate) fn packed_len(inner: usize) -> usize {
    inner.next_multiple_of(STEP)
}

/// Copies a row into whole steps, padded with zeros, in the order in which a format's weights load.
#[inline(always)]
fn pack_row(row: &[f32], interleaved: bool, packed: &mut [f32]) {
    let (steps, tail) = row.as_chunks::<STEP>();
    let (packed_steps, _) = packed.as_chunks_mut::<STEP>();
    for (from, to) in steps.iter().zip(packed_steps.iter_mut()) {
        pack_step(from, interleaved, to);
    }
    if !tail.is_empty() {
        let mut last = [0.0; STEP];
        last[..tail.len()].copy_from_slice(tail);
        pack_step(&last, interleaved, &mut packed_steps[steps.len()]);
    }
}

/// [`pack_row`] with the instructions of the machine, which turn its shuffles into single instructions.
pub(crate) struct Pack<'a> {
    /// The row.
    pub(crate) row: &'a [f32],
    /// Whether even and odd places are kept apart.
    pub(crate) interleaved: bool,
    /// The packed row.
    pub(crate) packed: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        pack_row(self.row, self.interleaved, self.packed);
    }
}

#[inline(always)]
fn pack_step(from: &[f32; STEP], interleaved: bool, to: &mut [f32; STEP]) {
    if interleaved {
        for i in 0..LANES {
            to[i] = from[2 * i];
            to[LANES + i] = from[2 * i + 1];
        }
    } else {
        *to = *from;
    }
}

/// Operands of a run of tiles: packed rows, weight rows, and where results go.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    /// First packed row; rows follow each other at `packed_len(inner)`.
    pub(crate) x: *const f32,
    /// First byte of the first weight row of the run.
    pub(crate) w: *const u8,
    /// Bytes between neighbouring weight rows.
    pub(crate) w_stride: usize,
    /// The inner dimension.
    pub(crate) inner: usize,
    /// One number per weight row of the run.
    pub(crate) bias: Option<&'a [f32]>,
    /// Result of the first row and the first weight row.
    pub(crate) out: *mut f32,
    /// Distance between the results of neighbouring rows.
    pub(crate) out_stride: usize,
}

/// Computes `rows` by `cols` results; `narrow` says that there are at most two rows.
///
/// The two cases are separate kernels because a function that holds all tile shapes grows so large
/// that the compiler stops inlining single instructions into it.
///
/// # Safety
/// `x` must be readable for `rows` packed rows, `w` for `cols` weight rows, and `out` writable (by
/// this thread alone) for `cols` results in each of `rows` rows; `bias` must have `cols` numbers.
#[inline(always)]
pub(crate) unsafe fn block<S: Simd, W: Format, const NARROW: bool>(
    s: S,
    at: Operands<'_>,
    rows: usize,
    cols: usize,
) {
    let mut col = 0;
    // SAFETY: in every call `col + C <= cols`.
    unsafe {
        while NARROW && S::NARROW_COLS == 8 && cols - col >= 8 {
            column_run::<S, W, NARROW, 8>(s, at, rows, col);
            col += 8;
        }
        while (if NARROW { S::NARROW_COLS } else { S::TILE_COLS }) >= 4 && cols - col >= 4 {
            column_run::<S, W, NARROW, 4>(s, at, rows, col);
            col += 4;
        }
        while !NARROW && S::TILE_COLS == 2 && cols - col >= 2 {
            column_run::<S, W, NARROW, 2>(s, at, rows, col);
            col += 2;
        }
        while col < cols {
            column_run::<S, W, NARROW, 1>(s, at, rows, col);
            col += 1;
        }
    }
}

/// All rows against the columns `col .. col + C`.
///
/// # Safety
/// As for [`block`], with `col + C` columns.
#[inline(always)]
unsafe fn column_run<S: Simd, W: Format, const NARROW: bool, const C: usize>(
    s: S,
    at: Operands<'_>,
    rows: usize,
    col: usize,
) {
    // The last numbers of each weight row, next to zeros.
    let mut tails = [[0_u8; 4 * STEP]; C];
    let tail = at.inner % STEP;
    if tail != 0 {
        for (c, to) in tails.iter_mut().enumerate() {
            let from = (col + c) * at.w_stride + (at.inner - tail) * W::BYTES;
            // SAFETY: `tail` numbers end each weight row, and `to` has room for a step of the widest format.
            unsafe {
                std::ptr::copy_nonoverlapping(at.w.add(from), to.as_mut_ptr(), tail * W::BYTES)
            };
        }
    }
    let mut row = 0;
    // SAFETY: in every call `row + R <= rows`, and both pairs lie inside the four columns.
    unsafe {
        // Twice as many rows by half as many columns: each weight is widened once for eight rows.
        while !NARROW && S::TILE_ROWS >= 4 && C == 4 && rows - row >= 8 {
            tile::<S, W, 8, 2>(s, at, row, col, &tails[..2]);
            tile::<S, W, 8, 2>(s, at, row, col + 2, &tails[2..]);
            row += 8;
        }
        while !NARROW && S::TILE_ROWS >= 4 && rows - row >= 4 {
            tile::<S, W, 4, C>(s, at, row, col, &tails);
            row += 4;
        }
        if !NARROW && S::TILE_ROWS >= 4 && rows - row == 3 {
            tile::<S, W, 3, C>(s, at, row, col, &tails);
            row += 3;
        }
        while S::TILE_ROWS >= 2 && rows - row >= 2 {
            tile::<S, W, 2, C>(s, at, row, col, &tails);
            row += 2;
        }
        while row < rows {
            tile::<S, W, 1, C>(s, at, row, col, &tails);
            row += 1;
        }
    }
}

/// One tile, from the first number of the inner dimension to the written results.
///
/// # Safety
/// As for [`block`], with `row + R` rows and `col + C` columns.
#[inline(always)]
unsafe fn tile<S: Simd, W: Format, const R: usize, const C: usize>(
    s: S,
    at: Operands<'_>,
    row: usize,
    col: usize,
    tails: &[[u8; 4 * STEP]],
) {
    let stride = packed_len(at.inner);
    let row_bytes = at.w_stride;
    // SAFETY: inside the rows and weight rows that the caller vouches for.
    let (x, w) = unsafe { (at.x.add(row * stride), at.w.add(col * row_bytes)) };
    let mut acc = [[s.splat(0.0); C]; R];
    let whole = at.inner / STEP;
    for step in 0..stride / STEP {
        // SAFETY: the packed rows are readable up to `stride`; a whole step of every weight row is
        // read from the weights, an incomplete one from `tails`.
        unsafe {
            let (from, distance) = if step < whole {
                (w.add(step * STEP * W::BYTES), row_bytes)
            } else {
                (tails.as_ptr().cast(), 4 * STEP)
            };
            let (first, second) = load_rows::<S, R>(s, x.add(step * STEP), stride);
            for c in 0..C {
                let (a, b) = W::load(s, from.add(c * distance));
                if row == 0 && step < whole {
                    // The weights come from far away and once; the tiles of the columns after these need them next.
                    let ahead = w.wrapping_add(step * STEP * W::BYTES + (C + c) * row_bytes);
                    s.prefetch(ahead);
                    if W::BYTES == 4 {
                        s.prefetch(ahead.wrapping_add(64));
                    }
                }
                for r in 0..R {
                    acc[r][c] = s.fma(first[r], a, acc[r][c]);
                    acc[r][c] = s.fma(second[r], b, acc[r][c]);
                }
            }
        }
    }
    let mut all = [[0.0; C]; R];
    if R == 4 && C == 4 {
        let sums = s.sum16(std::array::from_fn(|r| std::array::from_fn(|c| acc[r][c])));
        for r in 0..R {
            all[r].copy_from_slice(&sums[r]);
        }
    } else if R == 8 && C == 2 {
        // Two rows of two columns each take a row of the sixteen.
        let sums = s.sum16(std::array::from_fn(|i| {
            std::array::from_fn(|j| acc[2 * i + j / 2][j % 2])
        }));
        for r in 0..R {
            all[r].copy_from_slice(&sums[r / 2][r % 2 * 2..][..2]);
        }
    } else {
        for r in 0..R {
            let (fours, rest) = all[r].as_chunks_mut::<4>();
            for (i, four) in fours.iter_mut().enumerate() {
                *four = s.sum4([
                    acc[r][4 * i],
                    acc[r][4 * i + 1],
                    acc[r][4 * i + 2],
                    acc[r][4 * i + 3],
                ]);
            }
            let done = C - rest.len();
            for (i, one) in rest.iter_mut().enumerate() {
                *one = s.sum(acc[r][done + i]);
            }
        }
    }
    for r in 0..R {
        let sums = &mut all[r];
        if let Some(bias) = at.bias {
            for (sum, bias) in sums.iter_mut().zip(&bias[col..col + C]) {
                *sum += bias;
            }
        }
        // SAFETY: inside the results that the caller vouches for.
        unsafe {
            std::ptr::copy_nonoverlapping(
                sums.as_ptr(),
                at.out.add((row + r) * at.out_stride + col),
                C,
            )
        };
    }
}

/// Both vectors of one step of `R` packed rows.
///
/// # Safety
/// `x` must be readable for a step at each of `R` rows `stride` apart.
#[inline(always)]
unsafe fn load_rows<S: Simd, const R: usize>(
    s: S,
    x: *const f32,
    stride: usize,
) -> ([S::V; R], [S::V; R]) {
    let mut first = [s.splat(0.0); R];
    let mut second = [s.splat(0.0); R];
    for r in 0..R {
        // SAFETY: the caller vouches for a step at each row.
        unsafe {
            first[r] = s.load(&*x.add(r * stride).cast::<[f32; LANES]>());
            second[r] = s.load(&*x.add(r * stride + LANES).cast::<[f32; LANES]>());
        }
    }
    (first, second)
}
