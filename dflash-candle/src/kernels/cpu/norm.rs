//! Root-mean-square norms of rows.
//!
//! y = x / √(mean(x²) + ε) · w, in f32. The squares are added in four vectors of sixteen lanes that
//! take turns, so the order depends on the row's length only.

use super::isa::Kernel;
use super::math::{pad, silu};
use super::simd::{LANES, Simd};
use super::{Cpu, Shared};

/// Σ x².
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    let (fours, rest) = x.as_chunks::<{ 4 * LANES }>();
    for four in fours {
        let (parts, _) = four.as_chunks::<LANES>();
        for i in 0..4 {
            let v = s.load(&parts[i]);
            acc[i] = s.fma(v, v, acc[i]);
        }
    }
    let (parts, rest) = rest.as_chunks::<LANES>();
    for (i, part) in parts.iter().enumerate() {
        let v = s.load(part);
        acc[i] = s.fma(v, v, acc[i]);
    }
    if !rest.is_empty() {
        let v = s.load(&pad(rest));
        acc[3] = s.fma(v, v, acc[3]);
    }
    s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}

/// What a row is divided by, inverted.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

/// Normalises one row into `out`.
#[inline(always)]
pub(crate) fn norm_row<S: Simd>(
    s: S,
    x: &[f32],
    weight: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    let inverse = inverse_rms(s, x, eps);
    match weight {
        Some(w) => {
            for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
                *o = x * inverse * w;
            }
        }
        None => {
            for (o, x) in out.iter_mut().zip(x) {
                *o = x * inverse;
            }
        }
    }
}

struct Norm<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    gate: Option<&'a [f32]>,
    dim: usize,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (r, (x, out)) in self
            .x
            .chunks_exact(self.dim)
            .zip(self.out.chunks_exact_mut(self.dim))
            .enumerate()
        {
            norm_row(s, x, self.weight, self.eps, out);
            if let Some(gate) = self.gate {
                times_silu(s, out, &gate[r * self.dim..(r + 1) * self.dim]);
            }
        }
    }
}

/// `x := x · silu(gate)`.
#[inline(always)]
fn times_silu<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    let (gates, gate_rest) = gate.as_chunks::<LANES>();
    for (x, g) in whole.iter_mut().zip(gates) {
        let v = s.mul(s.load(x), silu(s, s.load(g)));
        s.store(x, v);
    }
    if !rest.is_empty() {
        let mut padded = pad(rest);
        let v = s.mul(s.load(&padded), silu(s, s.load(&pad(gate_rest))));
        s.store(&mut padded, v);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// Normalises rows of `dim` numbers: `out = x / √(mean(x²) + eps) (· weight)`.
///
/// For norms per head, `dim` is the head's width and `x` is `[time · heads, dim]`.
///
/// # Panics
/// If `x` does not hold whole rows, or lengths differ.
pub fn rms_norm(
    cpu: &Cpu,
    x: &[f32],
    dim: usize,
    weight: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    norm(cpu, x, dim, weight, None, eps, out);
}

/// `out = rms_norm(x, weight) · silu(gate)`: the output norm of a gated-delta layer.
///
/// # Panics
/// If `x` does not hold whole rows, or lengths differ.
pub fn gated_rms_norm(
    cpu: &Cpu,
    x: &[f32],
    gate: &[f32],
    dim: usize,
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    assert_eq!(gate.len(), x.len(), "invariant: a gate per number");
    norm(cpu, x, dim, Some(weight), Some(gate), eps, out);
}

fn norm(
    cpu: &Cpu,
    x: &[f32],
    dim: usize,
    weight: Option<&[f32]>,
    gate: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    assert!(
        dim > 0 && x.len().is_multiple_of(dim),
        "invariant: a norm's input holds whole rows"
    );
    assert_eq!(
        out.len(),
        x.len(),
        "invariant: a norm's output has the shape of its input"
    );
    assert!(
        weight.is_none_or(|w| w.len() == dim),
        "invariant: a norm has one weight per number of a row"
    );
    let all = Shared::new(out);
    cpu.split(
        x.len() / dim,
        1,
        x.len() * if gate.is_some() { 16 } else { 2 },
        |rows| {
            let range = rows.start * dim..rows.end * dim;
            // SAFETY: ranges of one split are disjoint.
            let out = unsafe { all.part(range.clone()) };
            cpu.isa.run(Norm {
                x: &x[range.clone()],
                weight,
                gate: gate.map(|g| &g[range]),
                dim,
                eps,
                out,
            });
        },
    );
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LENGTHS, Numbers, assert_bits, assert_close, contexts};
    use super::*;

    #[test]
    fn norms_match_the_formula_and_do_not_depend_on_company() {
        for cpu in contexts() {
            for dim in LENGTHS.into_iter().chain([2048]) {
                let mut numbers = Numbers::new(dim as u64);
                let rows = 65;
                let (x, z, w) = (
                    numbers.vec(rows * dim),
                    numbers.vec(rows * dim),
                    numbers.vec(dim),
                );
                let run = |x: &[f32], z: &[f32], kind: usize| {
                    let mut out = vec![f32::NAN; x.len()];
                    match kind {
                        0 => rms_norm(&cpu, x, dim, Some(&w), 1e-6, &mut out),
                        1 => rms_norm(&cpu, x, dim, None, 1e-6, &mut out),
                        _ => gated_rms_norm(&cpu, x, z, dim, &w, 1e-6, &mut out),
                    }
                    out
                };
                for kind in 0..3 {
                    let all = run(&x, &z, kind);
                    let expected: Vec<f64> = (0..rows * dim)
                        .map(|i| {
                            let row = &x[i / dim * dim..(i / dim + 1) * dim];
                            let mean =
                                row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / dim as f64;
                            let y = f64::from(x[i]) / (mean + 1e-6).sqrt();
                            let z = f64::from(z[i]);
                            y * match kind {
                                0 => f64::from(w[i % dim]),
                                1 => 1.0,
                                _ => f64::from(w[i % dim]) * z / (1.0 + (-z).exp()),
                            }
                        })
                        .collect();
                    assert_close(&all, &expected, 1e-5, &format!("{cpu:?} {dim} {kind}"));
                    for count in 1..=17 {
                        let part = run(&x[..count * dim], &z[..count * dim], kind);
                        assert_bits(
                            &part,
                            &all[..count * dim],
                            &format!("{cpu:?} {dim} {kind} {count} rows"),
                        );
                    }
                }
            }
        }
    }
}
