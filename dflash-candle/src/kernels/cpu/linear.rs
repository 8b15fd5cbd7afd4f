//! Matrix products with weights in their file's format.
//!
//! `out[r, o] = Σ_k x[r, k] · w[o, k]`. Weight rows are widened in registers, those stored as codes
//! eight at a time in scratch memory; the matrix is never copied. Up to the rows of one row block (at least sixteen) the weights are read once per
//! product; longer inputs go in row blocks that fit in the second-level cache.

use std::ops::Range;

use super::math::Activation;
use super::matrix::Matrix;
use super::packing::Packing;
use super::part::{GluPart, Operand, Part};
use super::{Cpu, filled};

/// Columns per task are a multiple of this: the widest tile.
pub(crate) const COLUMN_GRANULE: usize = 8;

/// `x · wᵀ (+ bias)` for `rows` rows of `x`: `[rows, outputs]`.
///
/// # Panics
/// If a slice's length does not match its shape.
pub fn linear(
    cpu: &Cpu,
    x: &[f32],
    rows: usize,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let cost = rows * weight.inner * weight.outputs;
    // SAFETY: the tasks cover all columns, and each writes its columns of every row.
    let (out, ()) = unsafe {
        filled(rows * weight.outputs, |out| {
            Packing::of([weight]).with_input(cpu, x, rows, weight.inner, cost, |input| {
                split_columns(cpu, &[weight.outputs], cost, |_, range| {
                    input.packed_for(cpu.isa, weight, |x| {
                        // Tasks have disjoint column ranges.
                        Part::new(Operand::new(x, rows, weight, bias), out).compute(cpu.isa, range);
                    });
                });
            });
        })
    };
    out
}

/// `act(x · gateᵀ) · (x · upᵀ)`, the gated half of a feed-forward layer: `[rows, outputs]`.
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
) -> Vec<f32> {
    assert_eq!(
        (gate.inner, gate.outputs),
        (up.inner, up.outputs),
        "invariant: gate and up have one shape"
    );
    let cost = 2 * rows * gate.inner * gate.outputs;
    // SAFETY: the tasks cover all columns, and each writes its columns of every row.
    let (out, ()) = unsafe {
        filled(rows * gate.outputs, |out| {
            Packing::of([gate, up]).with_input(cpu, x, rows, gate.inner, cost, |input| {
                split_columns(cpu, &[gate.outputs], cost, |_, range| {
                    let compute = |gate_x: &[f32], up_x: &[f32]| {
                        let pair = GluPart {
                            gate: Part::new(Operand::new(gate_x, rows, gate, None), out),
                            up: Operand::new(up_x, rows, up, None),
                        };
                        // Tasks have disjoint column ranges.
                        pair.compute(cpu.isa, act, range.clone());
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
        })
    };
    out
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

#[cfg(test)]
mod tests;
