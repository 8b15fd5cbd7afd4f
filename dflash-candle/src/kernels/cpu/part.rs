//! Products with packed inputs, computed in ranges of columns by the tasks of a job.

use std::marker::PhantomData;
use std::ops::Range;

use dflash_core::DType;

use super::Shared;
use super::isa::{Isa, Kernel};
use super::linear::{COLUMN_GRANULE, Matrix};
use super::math::{Activation, glu_here};
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
            match self.weight.dtype {
                DType::F32 => self.compute_as::<F32>(isa, range, out, stride),
                DType::Bf16 => self.compute_as::<Bf16>(isa, range, out, stride),
                DType::F16 => self.compute_as::<F16>(isa, range, out, stride),
            }
        }
    }

    /// # Safety
    /// As for [`Operand::compute`].
    unsafe fn compute_as<W: Format>(
        &self,
        isa: Isa,
        range: Range<usize>,
        out: *mut f32,
        stride: usize,
    ) {
        if self.rows <= 2 {
            isa.run(Columns::<W, true> {
                operand: self,
                range,
                out,
                stride,
                format: PhantomData,
            });
        } else {
            isa.run(Columns::<W, false> {
                operand: self,
                range,
                out,
                stride,
                format: PhantomData,
            });
        }
    }
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

/// The kernel that computes a column range of a product.
struct Columns<'p, 'a, W, const NARROW: bool> {
    operand: &'p Operand<'a>,
    range: Range<usize>,
    /// Where the first row's results go, and the distance to the next row's.
    out: *mut f32,
    stride: usize,
    format: PhantomData<W>,
}

impl<W: Format, const NARROW: bool> Kernel for Columns<'_, '_, W, NARROW> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Operand {
            x,
            rows,
            weight,
            bias,
        } = *self.operand;
        let weights = weight.rows(self.range.clone());
        let bias = bias.map(|b| &b[self.range.clone()]);
        let stride = packed_len(weight.inner);
        let step = (ROW_BLOCK_BYTES / (4 * stride.max(1))).clamp(16, 256);
        let mut row = 0;
        while row < rows {
            let count = step.min(rows - row);
            let at = Operands {
                x: x[row * stride..].as_ptr(),
                w: weights.as_ptr(),
                w_stride: weight.inner * W::BYTES,
                inner: weight.inner,
                bias,
                // SAFETY: `Operand::compute` has the caller's word for every row's results.
                out: unsafe { self.out.add(row * self.stride) },
                out_stride: self.stride,
            };
            // SAFETY: `Operand` checked the sizes of input, weights and bias; the results are
            // writable by this thread alone, says the caller of `Operand::compute`.
            unsafe { block::<S, W, NARROW>(s, at, count, self.range.len()) };
            row += count;
        }
    }
}
