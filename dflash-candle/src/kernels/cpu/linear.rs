//! Matrix products with weights in their file's format.
//!
//! `out[r, o] = Σ_k x[r, k] · w[o, k]`. Weight rows are widened in registers and never copied to a
//! second buffer. Up to the rows of one row block (at least sixteen) the weights are read once per
//! product; longer inputs go in row blocks that fit in the second-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use dflash_core::DType;

use super::isa::{Isa, Kernel};
use super::math::{Activation, glu_here};
use super::scratch::with_scratch;
use super::simd::Simd;
use super::tile::{Bf16, F16, F32, Format, Operands, Pack, block, packed_len};
use super::{Cpu, Shared};

/// Bytes of packed rows that one row block may have, about half a second-level cache.
const ROW_BLOCK_BYTES: usize = 768 * 1024;
/// Columns per task are a multiple of this: the widest tile.
const COLUMN_GRANULE: usize = 8;

/// A weight matrix `[outputs, inner]`, row-major little-endian bytes, possibly unaligned.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    bytes: &'a [u8],
    dtype: DType,
    outputs: usize,
    inner: usize,
}

impl<'a> Matrix<'a> {
    /// The matrix in `bytes`.
    ///
    /// # Panics
    /// If the length of `bytes` is not that of `outputs * inner` numbers.
    pub fn new(bytes: &'a [u8], dtype: DType, outputs: usize, inner: usize) -> Self {
        assert_eq!(
            bytes.len(),
            outputs * inner * dtype.size(),
            "invariant: a weight's bytes match its shape"
        );
        Self {
            bytes,
            dtype,
            outputs,
            inner,
        }
    }

    /// Rows of the matrix, outputs of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix, the length of an input row.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// The storage format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether packed rows hold even and odd places apart.
    pub(crate) fn interleaved(&self) -> bool {
        match self.dtype {
            DType::F32 => F32::INTERLEAVED,
            DType::Bf16 => Bf16::INTERLEAVED,
            DType::F16 => F16::INTERLEAVED,
        }
    }

    /// The bytes of some rows.
    pub(crate) fn rows(&self, range: Range<usize>) -> &'a [u8] {
        let size = self.inner * self.dtype.size();
        &self.bytes[range.start * size..range.end * size]
    }
}

/// One product of several with the same input.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weights.
    pub weight: Matrix<'a>,
    /// Added to every row, one number per output.
    pub bias: Option<&'a [f32]>,
    /// Results, `[rows, outputs]`.
    pub out: &'a mut [f32],
}

/// `out = x · wᵀ (+ bias)` for `rows` rows of `x`.
///
/// # Panics
/// If a slice's length does not match its shape.
pub fn linear(
    cpu: &Cpu,
    x: &[f32],
    rows: usize,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    linear_many(cpu, x, rows, &mut [Product { weight, bias, out }]);
}

/// Several products with the same input, in one parallel region.
///
/// # Panics
/// If a slice's length does not match its shape, or inner dimensions differ.
pub fn linear_many(cpu: &Cpu, x: &[f32], rows: usize, products: &mut [Product<'_>]) {
    let Some(first) = products.first() else {
        return;
    };
    let inner = first.weight.inner;
    for product in products.iter() {
        assert_eq!(
            product.weight.inner, inner,
            "invariant: products of one input share its width"
        );
    }
    let outputs: Vec<usize> = products.iter().map(|p| p.weight.outputs).collect();
    let cost = rows * inner * outputs.iter().sum::<usize>();
    let packing = Packing::of(products.iter().map(|p| p.weight));
    packing.with_input(cpu, x, rows, inner, cost, |input| {
        let mut places: Vec<(Matrix<'_>, Option<&[f32]>, Shared<'_>)> = Vec::new();
        for product in products.iter_mut() {
            assert_eq!(
                product.out.len(),
                rows * product.weight.outputs,
                "invariant: a product's output holds whole rows"
            );
            places.push((product.weight, product.bias, Shared::new(product.out)));
        }
        split_columns(cpu, &outputs, cost, |i, range| {
            let (weight, bias, out) = places[i];
            input.packed_for(cpu.isa, weight, |x| {
                let part = Part {
                    operand: Operand::new(x, rows, weight, bias),
                    out,
                };
                // SAFETY: tasks have disjoint column ranges.
                unsafe { part.compute(cpu.isa, range) };
            });
        });
    });
}

/// `out = act(x · gateᵀ) · (x · upᵀ)`, the gated half of a feed-forward layer.
///
/// # Panics
/// If a slice's length does not match its shape.
pub fn glu(
    cpu: &Cpu,
    x: &[f32],
    rows: usize,
    gate: Matrix<'_>,
    up: Matrix<'_>,
    act: Activation,
    out: &mut [f32],
) {
    assert_eq!(
        (gate.inner, gate.outputs),
        (up.inner, up.outputs),
        "invariant: gate and up have one shape"
    );
    assert_eq!(
        out.len(),
        rows * gate.outputs,
        "invariant: a product's output holds whole rows"
    );
    let out = Shared::new(out);
    let cost = 2 * rows * gate.inner * gate.outputs;
    Packing::of([gate, up]).with_input(cpu, x, rows, gate.inner, cost, |input| {
        split_columns(cpu, &[gate.outputs], cost, |_, range| {
            let compute = |gate_x: &[f32], up_x: &[f32]| {
                let pair = GluPart {
                    gate: Part {
                        operand: Operand::new(gate_x, rows, gate, None),
                        out,
                    },
                    up: Operand::new(up_x, rows, up, None),
                };
                // SAFETY: tasks have disjoint column ranges.
                unsafe { pair.compute(cpu.isa, act, range.clone()) };
            };
            input.packed_for(cpu.isa, gate, |gate_x| {
                if up.interleaved() == gate.interleaved() {
                    compute(gate_x, gate_x);
                } else {
                    input.packed_for(cpu.isa, up, |up_x| compute(gate_x, up_x));
                }
            });
        });
    });
}

/// Calls `task(i, columns)` for column ranges that cover `0..outputs[i]` of every matrix `i`, in
/// parallel if `cost` multiply-adds are worth it.
pub(crate) fn split_columns(
    cpu: &Cpu,
    outputs: &[usize],
    cost: usize,
    task: impl Fn(usize, Range<usize>) + Sync,
) {
    let all: usize = outputs.iter().sum();
    let step = all
        .div_ceil(cpu.tasks(cost))
        .next_multiple_of(COLUMN_GRANULE)
        .max(COLUMN_GRANULE);
    let count = outputs.iter().map(|o| o.div_ceil(step)).sum();
    cpu.pool.run(count, &|mut number| {
        for (i, outputs) in outputs.iter().enumerate() {
            let tasks = outputs.div_ceil(step);
            if number < tasks {
                task(i, number * step..((number + 1) * step).min(*outputs));
                return;
            }
            number -= tasks;
        }
    });
}

/// Which packed forms of an input its weights need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packing {
    interleaved: bool,
    plain: bool,
}

impl Packing {
    pub(crate) fn of<'a>(weights: impl IntoIterator<Item = Matrix<'a>>) -> Self {
        let mut packing = Self {
            interleaved: false,
            plain: false,
        };
        for weight in weights {
            *(if weight.interleaved() {
                &mut packing.interleaved
            } else {
                &mut packing.plain
            }) = true;
        }
        packing
    }

    /// Numbers that all forms take.
    pub(crate) fn size(self, rows: usize, inner: usize) -> usize {
        rows * packed_len(inner) * (usize::from(self.interleaved) + usize::from(self.plain))
    }

    /// Calls `work` with the input of products that cost that many multiply-adds.
    fn with_input(
        self,
        cpu: &Cpu,
        x: &[f32],
        rows: usize,
        inner: usize,
        cost: usize,
        work: impl FnOnce(&Input<'_>),
    ) {
        assert_eq!(
            x.len(),
            rows * inner,
            "invariant: an input holds whole rows"
        );
        let size = self.size(rows, inner);
        let own = cpu.tasks(cost) > 1 && size <= OWN_PACKING;
        with_scratch(if own { 0 } else { size }, |scratch| {
            let packed = (!own).then(|| self.pack(cpu, x, rows, inner, scratch));
            work(&Input {
                x,
                rows,
                inner,
                packed,
            });
        });
    }

    pub(crate) fn pack<'p>(
        self,
        cpu: &Cpu,
        x: &[f32],
        rows: usize,
        inner: usize,
        scratch: &'p mut [f32],
    ) -> Packed<'p> {
        let size = rows * packed_len(inner);
        let (interleaved, plain) = scratch.split_at_mut(if self.interleaved { size } else { 0 });
        if self.interleaved {
            pack(cpu, x, rows, inner, true, interleaved);
        }
        if self.plain {
            pack(cpu, x, rows, inner, false, plain);
        }
        Packed { interleaved, plain }
    }
}

/// Packed numbers up to which every task packs the rows for itself. Rows that one thread packs for
/// another travel twice between their caches, which costs more than packing them.
const OWN_PACKING: usize = 16 * 1024;

/// An input of products, packed or to be packed by each task.
struct Input<'p> {
    x: &'p [f32],
    rows: usize,
    inner: usize,
    packed: Option<Packed<'p>>,
}

impl Input<'_> {
    /// Calls `work` with the packed rows that a weight needs.
    fn packed_for(&self, isa: Isa, weight: Matrix<'_>, work: impl FnOnce(&[f32])) {
        if let Some(packed) = &self.packed {
            return work(packed.of(weight));
        }
        with_scratch(self.rows * packed_len(self.inner), |packed| {
            let rows = self.x.chunks_exact(self.inner.max(1));
            let places = packed.chunks_exact_mut(packed_len(self.inner).max(1));
            for (row, packed) in rows.zip(places) {
                isa.run(Pack {
                    row,
                    interleaved: weight.interleaved(),
                    packed,
                });
            }
            work(packed);
        });
    }
}

/// The packed forms of an input.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'p> {
    interleaved: &'p [f32],
    plain: &'p [f32],
}

impl<'p> Packed<'p> {
    /// The form that a weight needs.
    pub(crate) fn of(&self, weight: Matrix<'_>) -> &'p [f32] {
        if weight.interleaved() {
            self.interleaved
        } else {
            self.plain
        }
    }
}

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

/// Packs all rows of an input; `packed` has `rows * packed_len(inner)` numbers.
pub(crate) fn pack(
    cpu: &Cpu,
    x: &[f32],
    rows: usize,
    inner: usize,
    interleaved: bool,
    packed: &mut [f32],
) {
    assert_eq!(
        x.len(),
        rows * inner,
        "invariant: an input holds whole rows"
    );
    if inner == 0 {
        return;
    }
    let stride = packed_len(inner);
    assert!(packed.len() >= rows * stride, "invariant: packed rows fit");
    let to = Shared::new(packed);
    // Copying a number costs about as much as a few multiply-adds.
    cpu.split(rows, 1, rows * inner / 4, |range| {
        for r in range {
            // SAFETY: every row belongs to one task.
            let packed = unsafe { to.part(r * stride..(r + 1) * stride) };
            cpu.isa.run(Pack {
                row: &x[r * inner..(r + 1) * inner],
                interleaved,
                packed,
            });
        }
    });
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
    /// `x` are `rows` packed rows, `out` has shape `[rows, outputs]`.
    pub(crate) fn new(
        x: &'a [f32],
        rows: usize,
        weight: Matrix<'a>,
        bias: Option<&'a [f32]>,
        out: &'a mut [f32],
    ) -> Self {
        assert_eq!(
            out.len(),
            rows * weight.outputs,
            "invariant: a product's output holds whole rows"
        );
        Self {
            operand: Operand::new(x, rows, weight, bias),
            out: Shared::new(out),
        }
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

#[cfg(test)]
mod tests;
