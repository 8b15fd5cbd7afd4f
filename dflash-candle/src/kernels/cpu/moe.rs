//! Feed-forward layers made of experts.
//!
//! Rows are grouped by expert, so that the weights of an expert are read once however many rows
//! chose it. The results are then added row by row, in the order in which that row lists its
//! experts; what other rows chose has no influence.

use super::linear::split_columns;
use super::math::Activation;
use super::matrix::Matrix;
use super::packing::Packing;
use super::part::{GluPart, Operand, Part};
use super::scratch::with_scratch;
use super::{Cpu, Shared};

/// The three matrices of one expert.
#[derive(Debug, Clone, Copy)]
pub struct Expert<'a> {
    /// `[intermediate, hidden]`.
    pub gate: Matrix<'a>,
    /// `[intermediate, hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden, intermediate]`.
    pub down: Matrix<'a>,
}

/// The experts that the rows of a call chose: `ids` and `weights` are `[rows, per_row]`.
#[derive(Debug, Clone, Copy)]
pub struct Routes<'a> {
    /// Experts per row.
    pub per_row: usize,
    /// Expert numbers, in each row's own order.
    pub ids: &'a [u32],
    /// Factors of the experts' results.
    pub weights: &'a [f32],
}

/// `out` `[rows, hidden]` = Σ over a row's experts, in its order, of weight · down(act(gate x) · up x).
///
/// # Panics
/// If shapes differ, or an id is not below the number of experts.
pub fn moe(
    cpu: &Cpu,
    x: &[f32],
    rows: usize,
    routes: Routes<'_>,
    experts: &[Expert<'_>],
    act: Activation,
    out: &mut [f32],
) {
    let Some(first) = experts.first() else {
        assert!(routes.ids.is_empty(), "invariant: routes lead to experts");
        out.fill(0.0);
        return;
    };
    let (hidden, width) = (first.gate.inner(), first.gate.outputs());
    let count = rows * routes.per_row;
    assert_eq!(
        (x.len(), out.len()),
        (rows * hidden, rows * hidden),
        "invariant: input and output hold whole rows"
    );
    assert_eq!(
        (routes.ids.len(), routes.weights.len()),
        (count, count),
        "invariant: one route per row and choice"
    );

    // Places in `ids`, sorted by expert; equal experts keep the order of the rows.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|place| routes.ids[*place]);
    let runs: Vec<&[usize]> = order
        .chunk_by(|a, b| routes.ids[*a] == routes.ids[*b])
        .collect();
    let chosen: Vec<Expert<'_>> = runs
        .iter()
        .map(|run| experts[routes.ids[run[0]] as usize])
        .collect();
    for expert in &chosen {
        let shapes = [expert.gate, expert.up, expert.down].map(|m| (m.outputs(), m.inner()));
        assert_eq!(
            shapes,
            [(width, hidden), (width, hidden), (hidden, width)],
            "invariant: experts have one shape"
        );
    }

    let (into, from) = (
        Packing::of(chosen.iter().flat_map(|e| [e.gate, e.up])),
        Packing::of(chosen.iter().map(|e| e.down)),
    );
    let sizes = [
        count * hidden,
        into.size(count, hidden),
        count * width,
        from.size(count, width),
        count * hidden,
    ];
    // Every piece starts on a cache line.
    let sizes = sizes.map(|size| size.next_multiple_of(16));
    with_scratch(sizes.iter().sum(), |scratch| {
        let mut rest = scratch;
        let [gathered, packed, gates, packed_inner, results] = sizes.map(|size| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            piece
        });
        let gathered = &mut gathered[..count * hidden];
        for (to, place) in gathered.chunks_exact_mut(hidden).zip(&order) {
            let row = place / routes.per_row;
            to.copy_from_slice(&x[row * hidden..(row + 1) * hidden]);
        }
        let packed = into.pack(cpu, gathered, count, hidden, packed);
        {
            let mut gates = Pieces(&mut gates[..count * width]);
            let mut done = 0;
            let mut parts = Vec::with_capacity(runs.len());
            for (run, expert) in runs.iter().zip(&chosen) {
                let n = run.len();
                let rows_of =
                    |m: Matrix<'_>| &packed.of(m)[done * super::tile::packed_len(hidden)..];
                parts.push(GluPart {
                    gate: Part::new(
                        Operand::new(rows_of(expert.gate), n, expert.gate, None),
                        Shared::new(gates.take(n * width)),
                    ),
                    up: Operand::new(rows_of(expert.up), n, expert.up, None),
                });
                done += n;
            }
            split_columns(
                cpu,
                &vec![width; parts.len()],
                2 * count * hidden * width,
                |i, range| {
                    // SAFETY: tasks have disjoint column ranges of disjoint outputs.
                    unsafe { parts[i].compute(cpu.isa, act, range) };
                },
            );
        }
        let packed = from.pack(cpu, &gates[..count * width], count, width, packed_inner);
        let results = &mut results[..count * hidden];
        {
            let mut pieces = Pieces(&mut *results);
            let mut done = 0;
            let mut parts = Vec::with_capacity(runs.len());
            for (run, expert) in runs.iter().zip(&chosen) {
                let rows_of = &packed.of(expert.down)[done * super::tile::packed_len(width)..];
                parts.push(Part::new(
                    Operand::new(rows_of, run.len(), expert.down, None),
                    Shared::new(pieces.take(run.len() * hidden)),
                ));
                done += run.len();
            }
            split_columns(
                cpu,
                &vec![hidden; parts.len()],
                count * hidden * width,
                |i, range| {
                    // SAFETY: tasks have disjoint column ranges of disjoint outputs.
                    unsafe { parts[i].compute(cpu.isa, range) };
                },
            );
        }
        let mut place_of = vec![0; count];
        for (at, place) in order.iter().enumerate() {
            place_of[*place] = at;
        }
        let all = Shared::new(out);
        cpu.split(rows, 1, count * hidden * 2, |range| {
            for row in range {
                // SAFETY: every row belongs to one task.
                let out = unsafe { all.part(row * hidden..(row + 1) * hidden) };
                out.fill(0.0);
                for place in row * routes.per_row..(row + 1) * routes.per_row {
                    let weight = routes.weights[place];
                    let result = &results[place_of[place] * hidden..][..hidden];
                    for (out, r) in out.iter_mut().zip(result) {
                        *out += weight * r;
                    }
                }
            }
        });
    });
}

/// Cuts a buffer into consecutive pieces.
struct Pieces<'a>(&'a mut [f32]);

impl<'a> Pieces<'a> {
    fn take(&mut self, len: usize) -> &'a mut [f32] {
        let (piece, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        piece
    }
}

#[cfg(test)]
mod tests {
    use dflash_core::DType;

    use super::super::testing::{Numbers, assert_bits, assert_close, contexts, encode};
    use super::*;

    #[test]
    fn experts_match_a_naive_sum_and_rows_are_independent() {
        let (hidden, width, count, rows, per_row) = (48, 33, 7, 17, 3);
        let mut numbers = Numbers::new(2);
        let x = numbers.vec(rows * hidden);
        let types = [DType::Bf16, DType::F32, DType::F16];
        let weights: Vec<[(Vec<u8>, Vec<f32>); 3]> = (0..count)
            .map(|e| [0, 1, 2].map(|i| encode(&numbers.vec(hidden * width), types[(e + i) % 3])))
            .collect();
        let experts: Vec<Expert<'_>> = weights
            .iter()
            .enumerate()
            .map(|(e, [gate, up, down])| Expert {
                gate: Matrix::new(&gate.0[1..], types[e % 3], width, hidden),
                up: Matrix::new(&up.0[1..], types[(e + 1) % 3], width, hidden),
                down: Matrix::new(&down.0[1..], types[(e + 2) % 3], hidden, width),
            })
            .collect();
        // Different orders, a shared favourite, and one row that lists an expert twice.
        let ids: Vec<u32> = (0..rows as u32)
            .flat_map(|r| [r * 3 % 7, 5, if r == 4 { 5 } else { (r + 1) % 7 }])
            .collect();
        let factors = numbers.vec(rows * per_row);
        let mut expected = vec![0.0_f64; rows * hidden];
        for r in 0..rows {
            for i in 0..per_row {
                let [gate, up, down] = &weights[ids[r * per_row + i] as usize];
                let dot = |w: &[f32], o: usize, x: &dyn Fn(usize) -> f64, n: usize| {
                    (0..n).map(|k| x(k) * f64::from(w[o * n + k])).sum::<f64>()
                };
                let input = |k: usize| f64::from(x[r * hidden + k]);
                let inner: Vec<f64> = (0..width)
                    .map(|o| {
                        let g = dot(&gate.1, o, &input, hidden);
                        g / (1.0 + (-g).exp()) * dot(&up.1, o, &input, hidden)
                    })
                    .collect();
                for o in 0..hidden {
                    expected[r * hidden + o] +=
                        f64::from(factors[r * per_row + i]) * dot(&down.1, o, &|k| inner[k], width);
                }
            }
        }
        for cpu in contexts() {
            let run = |rows: std::ops::Range<usize>| {
                let mut out = vec![f32::NAN; rows.len() * hidden];
                let range = rows.start * per_row..rows.end * per_row;
                let routes = Routes {
                    per_row,
                    ids: &ids[range.clone()],
                    weights: &factors[range],
                };
                moe(
                    &cpu,
                    &x[rows.start * hidden..rows.end * hidden],
                    rows.len(),
                    routes,
                    &experts,
                    Activation::Silu,
                    &mut out,
                );
                out
            };
            let all = run(0..rows);
            assert_close(&all, &expected, 2e-5, &format!("{cpu:?}"));
            for r in 0..rows {
                assert_bits(
                    &run(r..r + 1),
                    &all[r * hidden..(r + 1) * hidden],
                    &format!("{cpu:?} row {r} alone"),
                );
            }
            assert_bits(
                &run(3..10),
                &all[3 * hidden..10 * hidden],
                &format!("{cpu:?} some rows"),
            );
        }
        let cpu = Cpu::new(1);
        let mut out = [1.0; 2];
        moe(
            &cpu,
            &[0.0; 2],
            1,
            Routes {
                per_row: 0,
                ids: &[],
                weights: &[],
            },
            &[],
            Activation::Silu,
            &mut out,
        );
        assert_eq!(out, [0.0; 2], "no experts, no result");
    }
}
