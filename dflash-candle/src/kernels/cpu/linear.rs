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
use super::tile::{Bf16, F16, F32, Format, Operands, block, pack_row, packed_len};
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
    let packing = Packing::of(products.iter().map(|p| p.weight));
    with_scratch(packing.size(rows, inner), |scratch| {
        let packed = packing.pack(cpu, x, rows, inner, scratch);
        let parts: Vec<Part<'_>> = products
            .iter_mut()
            .map(|p| Part::new(packed.of(p.weight), rows, p.weight, p.bias, p.out))
            .collect();
        let outputs: Vec<usize> = parts.iter().map(|p| p.weight.outputs).collect();
        let cost = rows * inner * outputs.iter().sum::<usize>();
        split_columns(cpu, &outputs, cost, |i, range| {
            // SAFETY: tasks have disjoint column ranges.
            unsafe { parts[i].compute(cpu.isa, range) };
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
    let packing = Packing::of([gate, up]);
    let size = packing.size(rows, gate.inner);
    with_scratch(size + rows * up.outputs, |scratch| {
        let (scratch, ups) = scratch.split_at_mut(size);
        let packed = packing.pack(cpu, x, rows, gate.inner, scratch);
        let pair = GluPart {
            gate: Part::new(packed.of(gate), rows, gate, None, out),
            up: Part::new(packed.of(up), rows, up, None, &mut ups[..rows * up.outputs]),
        };
        split_columns(
            cpu,
            &[gate.outputs],
            2 * rows * gate.inner * gate.outputs,
            |_, range| {
                // SAFETY: tasks have disjoint column ranges.
                unsafe { pair.compute(cpu.isa, act, range) };
            },
        );
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
    pub(crate) up: Part<'a>,
}

impl GluPart<'_> {
    /// Computes some of the columns of `act(gate) · up` into the gate's output.
    ///
    /// # Safety
    /// As for [`Part::compute`].
    pub(crate) unsafe fn compute(&self, isa: Isa, act: Activation, range: Range<usize>) {
        let width = self.gate.weight.outputs;
        // SAFETY: the caller's word covers both products' columns.
        unsafe {
            self.gate.compute(isa, range.clone());
            self.up.compute(isa, range.clone());
            for row in 0..self.gate.rows {
                let columns = row * width + range.start..row * width + range.end;
                glu_here(
                    isa,
                    act,
                    self.gate.out.part(columns.clone()),
                    self.up.out.part(columns),
                );
            }
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
            pack_row(&x[r * inner..(r + 1) * inner], interleaved, unsafe {
                to.part(r * stride..(r + 1) * stride)
            });
        }
    });
}

/// A product with its packed input, ready to be computed in column ranges.
pub(crate) struct Part<'a> {
    x: &'a [f32],
    rows: usize,
    pub(crate) weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
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
        assert!(
            x.len() >= rows * packed_len(weight.inner),
            "invariant: packed rows are complete"
        );
        assert_eq!(
            out.len(),
            rows * weight.outputs,
            "invariant: a product's output holds whole rows"
        );
        if let Some(bias) = bias {
            assert_eq!(bias.len(), weight.outputs, "invariant: one bias per output");
        }
        Self {
            x,
            rows,
            weight,
            bias,
            out: Shared::new(out),
        }
    }

    /// Computes some of the columns.
    ///
    /// # Safety
    /// Calls with overlapping ranges must not run at the same time, and nothing else may use those
    /// results meanwhile.
    pub(crate) unsafe fn compute(&self, isa: Isa, range: Range<usize>) {
        assert!(range.end <= self.weight.outputs, "invariant: columns exist");
        match self.weight.dtype {
            DType::F32 => self.compute_as::<F32>(isa, range),
            DType::Bf16 => self.compute_as::<Bf16>(isa, range),
            DType::F16 => self.compute_as::<F16>(isa, range),
        }
    }

    fn compute_as<W: Format>(&self, isa: Isa, range: Range<usize>) {
        if self.rows <= 2 {
            isa.run(Columns::<W, true> {
                part: self,
                range,
                format: PhantomData,
            });
        } else {
            isa.run(Columns::<W, false> {
                part: self,
                range,
                format: PhantomData,
            });
        }
    }
}

/// The kernel that computes a column range of a product.
struct Columns<'p, 'a, W, const NARROW: bool> {
    part: &'p Part<'a>,
    range: Range<usize>,
    format: PhantomData<W>,
}

impl<W: Format, const NARROW: bool> Kernel for Columns<'_, '_, W, NARROW> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Part {
            x,
            rows,
            weight,
            bias,
            out,
        } = *self.part;
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
                // SAFETY: `row` and the range lie inside the output, checked by `Part`.
                out: unsafe { out.start.add(row * weight.outputs + self.range.start) },
                out_stride: weight.outputs,
            };
            // SAFETY: `Part` checked the sizes of input, weights, bias and output; `Part::compute` has
            // the caller's word that nobody else touches these columns.
            unsafe { block::<S, W, NARROW>(s, at, count, self.range.len()) };
            row += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LENGTHS, Numbers, assert_bits, assert_close, contexts, encode};
    use super::*;

    const FORMATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

    #[test]
    fn products_match_a_naive_sum() {
        for cpu in contexts() {
            for dtype in FORMATS {
                for inner in LENGTHS {
                    for (rows, outputs) in
                        [(1, 1), (1, 13), (2, 8), (3, 17), (7, 5), (16, 33), (17, 40)]
                    {
                        let mut numbers = Numbers::new(inner as u64);
                        let x = numbers.vec(rows * inner);
                        let (bytes, w) = encode(&numbers.vec(outputs * inner), dtype);
                        let bias = numbers.vec(outputs);
                        let mut out = vec![f32::NAN; rows * outputs];
                        linear(
                            &cpu,
                            &x,
                            rows,
                            Matrix::new(&bytes[1..], dtype, outputs, inner),
                            Some(&bias),
                            &mut out,
                        );
                        let expected: Vec<f64> = (0..rows * outputs)
                            .map(|i| {
                                let (r, o) = (i / outputs, i % outputs);
                                let dot: f64 = (0..inner)
                                    .map(|k| {
                                        f64::from(x[r * inner + k]) * f64::from(w[o * inner + k])
                                    })
                                    .sum();
                                dot + f64::from(bias[o])
                            })
                            .collect();
                        assert_close(
                            &out,
                            &expected,
                            1e-5,
                            &format!("{cpu:?} {dtype} {rows}x{inner}x{outputs}"),
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company() {
        for dtype in FORMATS {
            for inner in [1, 17, 33, 192, 575] {
                for outputs in [1, 7, 30, 64, 700] {
                    let mut numbers = Numbers::new(7);
                    let x = numbers.vec(300 * inner);
                    let (bytes, _) = encode(&numbers.vec(outputs * inner), dtype);
                    let weight = Matrix::new(&bytes[1..], dtype, outputs, inner);
                    for isa in super::super::Isa::available() {
                        let one = Cpu::with_isa(isa, 1);
                        let mut alone = vec![0.0; 300 * outputs];
                        for (x, out) in x.chunks(inner).zip(alone.chunks_mut(outputs)) {
                            linear(&one, x, 1, weight, None, out);
                        }
                        for threads in [1, 2, 3] {
                            let cpu = Cpu::with_isa(isa, threads);
                            for rows in (1..=17).chain([64, 300]) {
                                let mut out = vec![0.0; rows * outputs];
                                linear(&cpu, &x[..rows * inner], rows, weight, None, &mut out);
                                assert_bits(
                                    &out,
                                    &alone[..rows * outputs],
                                    &format!("{cpu:?} {dtype} {rows}x{inner}x{outputs}"),
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn instruction_sets_with_fused_arithmetic_agree() {
        let fused: Vec<Cpu> = super::super::testing::single()
            .into_iter()
            .filter(|c| c.isa() != super::super::Isa::portable())
            .collect();
        let mut numbers = Numbers::new(9);
        let (rows, inner, outputs) = (5, 575, 37);
        let x = numbers.vec(rows * inner);
        for dtype in FORMATS {
            let (bytes, _) = encode(&numbers.vec(outputs * inner), dtype);
            let results: Vec<Vec<f32>> = fused
                .iter()
                .map(|cpu| {
                    let mut out = vec![0.0; rows * outputs];
                    linear(
                        cpu,
                        &x,
                        rows,
                        Matrix::new(&bytes[1..], dtype, outputs, inner),
                        None,
                        &mut out,
                    );
                    out
                })
                .collect();
            for result in &results {
                assert_bits(result, &results[0], &format!("{dtype}"));
            }
        }
    }

    #[test]
    fn products_of_one_input_equal_single_products() {
        let mut numbers = Numbers::new(3);
        let (rows, inner) = (6, 192);
        let x = numbers.vec(rows * inner);
        let weights: Vec<(Vec<u8>, DType, usize)> =
            [(DType::Bf16, 192), (DType::F32, 64), (DType::F16, 31)]
                .into_iter()
                .map(|(dtype, outputs)| {
                    (
                        encode(&numbers.vec(outputs * inner), dtype).0,
                        dtype,
                        outputs,
                    )
                })
                .collect();
        for cpu in contexts() {
            let mut together: Vec<Vec<f32>> =
                weights.iter().map(|w| vec![0.0; rows * w.2]).collect();
            let mut products: Vec<Product<'_>> = weights
                .iter()
                .zip(&mut together)
                .map(|(w, out)| Product {
                    weight: Matrix::new(&w.0[1..], w.1, w.2, inner),
                    bias: None,
                    out,
                })
                .collect();
            linear_many(&cpu, &x, rows, &mut products);
            for (w, together) in weights.iter().zip(&together) {
                let mut alone = vec![0.0; rows * w.2];
                linear(
                    &cpu,
                    &x,
                    rows,
                    Matrix::new(&w.0[1..], w.1, w.2, inner),
                    None,
                    &mut alone,
                );
                assert_bits(together, &alone, &format!("{cpu:?} {}", w.1));
            }
        }
    }

    #[test]
    fn the_fused_gate_equals_its_parts() {
        let mut numbers = Numbers::new(4);
        let (inner, outputs) = (96, 200);
        let x = numbers.vec(20 * inner);
        for (gate_type, up_type) in [(DType::Bf16, DType::Bf16), (DType::F32, DType::Bf16)] {
            let gate = encode(&numbers.vec(outputs * inner), gate_type).0;
            let up = encode(&numbers.vec(outputs * inner), up_type).0;
            let (gate, up) = (
                Matrix::new(&gate[1..], gate_type, outputs, inner),
                Matrix::new(&up[1..], up_type, outputs, inner),
            );
            for cpu in contexts() {
                for act in [Activation::Silu, Activation::GeluTanh] {
                    for rows in [1, 2, 7, 20] {
                        let x = &x[..rows * inner];
                        let (mut fused, mut a, mut b) = (
                            vec![0.0; rows * outputs],
                            vec![0.0; rows * outputs],
                            vec![0.0; rows * outputs],
                        );
                        glu(&cpu, x, rows, gate, up, act, &mut fused);
                        linear(&cpu, x, rows, gate, None, &mut a);
                        linear(&cpu, x, rows, up, None, &mut b);
                        super::super::glu_in_place(&cpu, act, &mut a, &b);
                        assert_bits(&fused, &a, &format!("{cpu:?} {act:?} {rows}"));
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_to_do_is_done() {
        let cpu = Cpu::new(1);
        linear(
            &cpu,
            &[],
            0,
            Matrix::new(&[], DType::F32, 0, 4),
            None,
            &mut [],
        );
        linear_many(&cpu, &[], 0, &mut []);
        let mut out = [1.0; 2];
        linear(
            &cpu,
            &[],
            1,
            Matrix::new(&[], DType::Bf16, 2, 0),
            None,
            &mut out,
        );
        assert_eq!(out, [0.0; 2], "an empty sum is zero");
    }
}
