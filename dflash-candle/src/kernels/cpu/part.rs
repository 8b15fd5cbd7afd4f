//! Products with packed inputs, computed in ranges of columns by the tasks of a job.

use std::marker::PhantomData;
use std::ops::Range;

use dflash_core::DType;

use super::Shared;
use super::codes::Codes;
use super::isa::{Isa, Kernel};
use super::linear::COLUMN_GRANULE;
use super::math::{Activation, glu_here};
use super::matrix::{Matrix, Numbers};
use super::scratch::with_scratch;
use super::simd::Simd;
use super::tile::{Bf16, F16, F32, Format, Operands, block, packed_len};

/// Bytes of packed rows that one row block may have, about half a second-level cache.
const ROW_BLOCK_BYTES: usize = 768 * 1024;

/// Two products of one input whose results are combined.
pub(crate) struct GluPart<'a> {
    pub(crate) gate: Part<'a>,
    pub(crate) up: Operand<'a>,
}

/// Numbers of a factor that a task computes at a time: they stay in its first-level cache.
const FACTOR_NUMBERS: usize = 4096;

impl GluPart<'_> {
    /// Computes some of the columns of `act(gate) · up` into the gate's output.
    ///
    /// # Safety
    /// As for [`Part::compute`].
    pub(crate) unsafe fn compute(&self, isa: Isa, act: Activation, range: Range<usize>) {
        let (rows, width) = (self.up.rows, self.up.weight.outputs);
        if rows == 0 {
            return;
        }
        let step = (FACTOR_NUMBERS / rows).next_multiple_of(8 * COLUMN_GRANULE);
        for start in range.clone().step_by(step) {
            let columns = start..(start + step).min(range.end);
            let count = columns.len();
            with_scratch(rows * count, |ups| {
                // SAFETY: the scratch memory holds `count` results of each row and belongs to this
                // thread; the caller's word covers the gate's columns.
                unsafe {
                    self.up
                        .compute(isa, columns.clone(), ups.as_mut_ptr(), count);
                    self.gate.compute(isa, columns.clone());
                    for (row, ups) in ups.chunks_exact(count).take(rows).enumerate() {
                        let at = row * width + columns.start;
                        glu_here(isa, act, self.gate.out.part(at..at + count), ups);
                    }
                }
            });
        }
    }
}

/// A product's packed input and weights, ready to be computed in column ranges.
pub(crate) struct Operand<'a> {
    x: &'a [f32],
    rows: usize,
    pub(crate) weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
}

impl<'a> Operand<'a> {
    /// `x` are `rows` packed rows.
    pub(crate) fn new(
        x: &'a [f32],
        rows: usize,
        weight: Matrix<'a>,
        bias: Option<&'a [f32]>,
    ) -> Self {
        assert!(
            x.len() >= rows * packed_len(weight.inner),
            "invariant: packed rows are complete"
        );
        if let Some(bias) = bias {
            assert_eq!(bias.len(), weight.outputs, "invariant: one bias per output");
        }
        Self {
            x,
            rows,
            weight,
            bias,
        }
    }

    /// Computes some of the columns; the first one's result of row r goes to `out + r * stride`.
    ///
    /// # Safety
    /// `out` must be writable, by this thread alone, for `range.len()` numbers in each row.
    unsafe fn compute(&self, isa: Isa, range: Range<usize>, out: *mut f32, stride: usize) {
        assert!(range.end <= self.weight.outputs, "invariant: columns exist");
        // SAFETY: the caller's word is passed on.
        unsafe {
            match self.weight.numbers {
                Numbers::Plain { dtype, .. } => {
                    let place = Place {
                        weights: self.weight.rows(range.clone()),
                        bias: self.bias.map(|b| &b[range.clone()]),
                        columns: range.len(),
                        rows: 0..self.rows,
                        out,
                        stride,
                    };
                    match dtype {
                        DType::F32 => self.compute_as::<F32>(isa, place),
                        DType::Bf16 => self.compute_as::<Bf16>(isa, place),
                        DType::F16 => self.compute_as::<F16>(isa, place),
                    }
                }
                Numbers::Coded(codes) => self.compute_coded(isa, codes, range, out, stride),
            }
        }
    }

    /// [`Operand::compute`] for rows of codes: a tile of columns is widened once for the rows of a block.
    ///
    /// # Safety
    /// As for [`Operand::compute`].
    unsafe fn compute_coded(
        &self,
        isa: Isa,
        codes: Codes<'_>,
        range: Range<usize>,
        out: *mut f32,
        stride: usize,
    ) {
        let step = row_block(self.weight.inner);
        for first in (0..self.rows).step_by(step) {
            let rows = first..(first + step).min(self.rows);
            for start in range.clone().step_by(COLUMN_GRANULE) {
                let columns = start..(start + COLUMN_GRANULE).min(range.end);
                codes.with_rows(isa, self.weight.inner, columns.clone(), |wide| {
                    // SAFETY: the caller's word covers these columns of every row.
                    unsafe {
                        let place = Place {
                            weights: as_bytes(wide),
                            bias: self.bias.map(|b| &b[columns.clone()]),
                            columns: columns.len(),
                            rows: rows.clone(),
                            out: out.add(start - range.start),
                            stride,
                        };
                        self.compute_as::<F32>(isa, place);
                    }
                });
            }
        }
    }

    /// # Safety
    /// The place's results must be writable by this thread alone, and its weights in format `W`.
    unsafe fn compute_as<W: Format>(&self, isa: Isa, place: Place<'_>) {
        if self.rows <= 2 {
            isa.run(Columns::<W, true> {
                operand: self,
                place,
                format: PhantomData,
            });
        } else {
            isa.run(Columns::<W, false> {
                operand: self,
                place,
                format: PhantomData,
            });
        }
    }
}

/// The bytes of numbers.
fn as_bytes(numbers: &[f32]) -> &[u8] {
    // SAFETY: every byte of a number is a byte, and the memory is the same.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Rows that are multiplied before the next ones, at least sixteen: their numbers stay in the second-level cache.
fn row_block(inner: usize) -> usize {
    (ROW_BLOCK_BYTES / (4 * packed_len(inner).max(1))).clamp(16, 256)
}

/// Some columns and rows of a product.
struct Place<'w> {
    /// The columns' weights, whole rows of the weight matrix.
    weights: &'w [u8],
    /// One number per column.
    bias: Option<&'w [f32]>,
    /// How many columns.
    columns: usize,
    /// Which rows.
    rows: Range<usize>,
    /// Where the results of row 0 go, and the distance to the next row's.
    out: *mut f32,
    stride: usize,
}

/// A product with the place of its results.
pub(crate) struct Part<'a> {
    operand: Operand<'a>,
    out: Shared<'a>,
}

impl<'a> Part<'a> {
    /// A product whose results have shape `[rows, outputs]`.
    pub(crate) fn new(operand: Operand<'a>, out: Shared<'a>) -> Self {
        assert_eq!(
            out.len,
            operand.rows * operand.weight.outputs,
            "invariant: a product's output holds whole rows"
        );
        Self { operand, out }
    }

    /// Computes some of the columns.
    ///
    /// # Safety
    /// Calls with overlapping ranges must not run at the same time, and nothing else may use those
    /// results meanwhile.
    pub(crate) unsafe fn compute(&self, isa: Isa, range: Range<usize>) {
        let outputs = self.operand.weight.outputs;
        assert!(
            range.start <= range.end && range.end <= outputs,
            "invariant: columns exist"
        );
        if self.operand.rows == 0 {
            return;
        }
        // SAFETY: `out` holds `outputs` results of every row, and the caller vouches for these
        // columns of them.
        unsafe {
            let out = self.out.start.add(range.start);
            self.operand.compute(isa, range, out, outputs);
        }
    }
}

/// The kernel that computes a place.
struct Columns<'p, 'a, W, const NARROW: bool> {
    operand: &'p Operand<'a>,
    place: Place<'p>,
    format: PhantomData<W>,
}

impl<W: Format, const NARROW: bool> Kernel for Columns<'_, '_, W, NARROW> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { operand, place, .. } = self;
        let inner = operand.weight.inner;
        let stride = packed_len(inner);
        assert!(
            place.weights.len() >= place.columns * inner * W::BYTES
                && place.rows.end <= operand.rows
                && place.bias.is_none_or(|b| b.len() == place.columns),
            "invariant: weights and inputs are complete"
        );
        let step = row_block(inner);
        let mut row = place.rows.start;
        while row < place.rows.end {
            let count = step.min(place.rows.end - row);
            let at = Operands {
                x: operand.x[row * stride..].as_ptr(),
                w: place.weights.as_ptr(),
                w_stride: inner * W::BYTES,
                inner,
                bias: place.bias,
                // SAFETY: `Operand::compute` has the caller's word for every row's results.
                out: unsafe { place.out.add(row * place.stride) },
                out_stride: place.stride,
            };
            // SAFETY: the sizes of input, weights and bias were checked; the results are writable
            // by this thread alone, says the caller of `Operand::compute`.
            unsafe { block::<S, W, NARROW>(s, at, count, place.columns) };
            row += count;
        }
    }
}
