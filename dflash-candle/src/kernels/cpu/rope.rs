//! Rotary position embedding of heads, with an optional norm per head in front.
//!
//! Inside the first `dims` features of a head, feature i is paired with i + dims/2:
//! out(i) = a·cos − b·sin, out(i + dims/2) = a·sin + b·cos. The other features pass through.

use super::isa::Kernel;
use super::math::pad;
use super::norm::norm_row;
use super::simd::{LANES, Simd};
use super::{Cpu, Shared};

/// Where the heads of an input lie: `[time, heads, dim]` with any distance between rows and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Rows.
    pub time: usize,
    /// Heads per row.
    pub heads: usize,
    /// Numbers per head, next to each other.
    pub dim: usize,
    /// Distance between the first numbers of neighbouring rows.
    pub time_stride: usize,
    /// Distance between the first numbers of neighbouring heads.
    pub head_stride: usize,
}

impl Heads {
    /// Rows and heads without gaps.
    pub fn contiguous(time: usize, heads: usize, dim: usize) -> Self {
        Self {
            time,
            heads,
            dim,
            time_stride: heads * dim,
            head_stride: dim,
        }
    }

    /// Numbers that the first to the last number span.
    pub(crate) fn span(&self) -> usize {
        if self.time == 0 || self.heads == 0 {
            return 0;
        }
        (self.time - 1) * self.time_stride + (self.heads - 1) * self.head_stride + self.dim
    }

    /// The first number of a head.
    #[inline(always)]
    pub(crate) fn at(&self, t: usize, h: usize) -> usize {
        t * self.time_stride + h * self.head_stride
    }
}

/// A norm over each head.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// One factor per number of a head, the same for all heads.
    pub weight: Option<&'a [f32]>,
    /// Added to the mean of the squares.
    pub eps: f32,
}

/// Angles of a call's rows.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// Features that rotate, the first of each head; even.
    pub dims: usize,
    /// Amplitude times cosine, `[time, dims / 2]`.
    pub cos: &'a [f32],
    /// Amplitude times sine, `[time, dims / 2]`.
    pub sin: &'a [f32],
}

/// Rotates one head in place.
#[inline(always)]
fn rotate<S: Simd>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    let (low, high) = head.split_at_mut(half);
    let (low, low_rest) = low.as_chunks_mut::<LANES>();
    let (high, high_rest) = high[..half].as_chunks_mut::<LANES>();
    let (cos, cos_rest) = cos.as_chunks::<LANES>();
    let (sin, sin_rest) = sin.as_chunks::<LANES>();
    for i in 0..low.len() {
        rotate_lanes(s, &mut low[i], &mut high[i], &cos[i], &sin[i]);
    }
    if !low_rest.is_empty() {
        let (mut a, mut b) = (pad(low_rest), pad(high_rest));
        rotate_lanes(s, &mut a, &mut b, &pad(cos_rest), &pad(sin_rest));
        low_rest.copy_from_slice(&a[..low_rest.len()]);
        high_rest.copy_from_slice(&b[..high_rest.len()]);
    }
}

#[inline(always)]
fn rotate_lanes<S: Simd>(
    s: S,
    a: &mut [f32; LANES],
    b: &mut [f32; LANES],
    cos: &[f32; LANES],
    sin: &[f32; LANES],
) {
    let (x, y, c, n) = (s.load(a), s.load(b), s.load(cos), s.load(sin));
    let low = s.sub(s.mul(x, c), s.mul(y, n));
    let high = s.fma(x, n, s.mul(y, c));
    s.store(a, low);
    s.store(b, high);
}

struct NormRope<'a> {
    x: &'a [f32],
    layout: Heads,
    norm: Option<HeadNorm<'a>>,
    rotation: Option<Rotation<'a>>,
    rows: std::ops::Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for NormRope<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Heads { heads, dim, .. } = self.layout;
        for (i, out) in self.out.chunks_exact_mut(dim).enumerate() {
            let (t, h) = (self.rows.start + i / heads, i % heads);
            let start = self.layout.at(t, h);
            let x = &self.x[start..start + dim];
            match self.norm {
                Some(norm) => norm_row(s, x, norm.weight, norm.eps, out),
                None => out.copy_from_slice(x),
            }
            if let Some(rope) = self.rotation {
                let half = rope.dims / 2;
                let angles = t * half..(t + 1) * half;
                rotate(
                    s,
                    &mut out[..rope.dims],
                    &rope.cos[angles.clone()],
                    &rope.sin[angles],
                );
            }
        }
    }
}

/// Gathers heads, normalises each (if asked) and rotates it (if asked), into `out` `[time, heads, dim]`.
///
/// `out` may be the new rows of a key cache.
///
/// # Panics
/// If a slice is too short for its shape, or `dims` is odd or larger than a head.
pub fn norm_rope(
    cpu: &Cpu,
    x: &[f32],
    layout: Heads,
    norm: Option<HeadNorm<'_>>,
    rotation: Option<Rotation<'_>>,
    out: &mut [f32],
) {
    let Heads {
        time, heads, dim, ..
    } = layout;
    assert!(
        x.len() >= layout.span(),
        "invariant: all heads lie inside the input"
    );
    assert_eq!(
        out.len(),
        time * heads * dim,
        "invariant: the output holds all heads"
    );
    if let Some(weight) = norm.and_then(|n| n.weight) {
        assert_eq!(
            weight.len(),
            dim,
            "invariant: one weight per number of a head"
        );
    }
    if let Some(rope) = rotation {
        assert!(
            rope.dims <= dim && rope.dims.is_multiple_of(2),
            "invariant: rotated features come in pairs inside a head"
        );
        assert_eq!(
            rope.cos.len(),
            time * rope.dims / 2,
            "invariant: one cosine per row and pair"
        );
        assert_eq!(
            rope.sin.len(),
            rope.cos.len(),
            "invariant: one sine per cosine"
        );
    }
    if out.is_empty() {
        return;
    }
    let cost = out.len() * 4;
    let all = Shared::new(out);
    cpu.split(time, 1, cost, |rows| {
        let width = heads * dim;
        // SAFETY: ranges of one split are disjoint.
        let out = unsafe { all.part(rows.start * width..rows.end * width) };
        cpu.isa.run(NormRope {
            x,
            layout,
            norm,
            rotation,
            rows,
            out,
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Numbers, assert_bits, assert_close, contexts};
    use super::*;

    #[test]
    fn heads_are_gathered_normed_and_rotated() {
        for cpu in contexts() {
            for (heads, dim, dims, gap) in [
                (1, 2, 2, 0),
                (3, 6, 4, 1),
                (2, 64, 64, 64),
                (4, 128, 32, 7),
                (2, 40, 38, 0),
            ] {
                let time = 33;
                let layout = Heads {
                    time,
                    heads,
                    dim,
                    head_stride: dim + gap,
                    time_stride: heads * (dim + gap) + 5,
                };
                let mut numbers = Numbers::new(dim as u64);
                // Numbers between the heads must not be read.
                let mut x = vec![f32::NAN; layout.span()];
                for t in 0..time {
                    for h in 0..heads {
                        x[layout.at(t, h)..][..dim].copy_from_slice(&numbers.vec(dim));
                    }
                }
                let weight = numbers.vec(dim);
                let (cos, sin) = (numbers.vec(time * dims / 2), numbers.vec(time * dims / 2));
                let norm = HeadNorm {
                    weight: Some(&weight),
                    eps: 1e-6,
                };
                let mut all = vec![f32::NAN; time * heads * dim];
                norm_rope(
                    &cpu,
                    &x,
                    layout,
                    Some(norm),
                    Some(Rotation {
                        dims,
                        cos: &cos,
                        sin: &sin,
                    }),
                    &mut all,
                );
                let mut expected = Vec::new();
                for t in 0..time {
                    for h in 0..heads {
                        let row = &x[layout.at(t, h)..][..dim];
                        let mean =
                            row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / dim as f64;
                        let normed: Vec<f64> = row
                            .iter()
                            .zip(&weight)
                            .map(|(v, w)| f64::from(*v) / (mean + 1e-6).sqrt() * f64::from(*w))
                            .collect();
                        for d in 0..dim {
                            let half = dims / 2;
                            expected.push(if d < half {
                                let (c, s) =
                                    (f64::from(cos[t * half + d]), f64::from(sin[t * half + d]));
                                normed[d] * c - normed[d + half] * s
                            } else if d < dims {
                                let (c, s) = (
                                    f64::from(cos[t * half + d - half]),
                                    f64::from(sin[t * half + d - half]),
                                );
                                normed[d - half] * s + normed[d] * c
                            } else {
                                normed[d]
                            });
                        }
                    }
                }
                assert_close(&all, &expected, 1e-5, &format!("{cpu:?} {layout:?}"));
                for t in 0..time {
                    let one = Heads { time: 1, ..layout };
                    let half = dims / 2;
                    let rotation = Rotation {
                        dims,
                        cos: &cos[t * half..(t + 1) * half],
                        sin: &sin[t * half..(t + 1) * half],
                    };
                    let mut row = vec![f32::NAN; heads * dim];
                    norm_rope(
                        &cpu,
                        &x[t * layout.time_stride..],
                        one,
                        Some(norm),
                        Some(rotation),
                        &mut row,
                    );
                    assert_bits(
                        &row,
                        &all[t * heads * dim..(t + 1) * heads * dim],
                        &format!("{cpu:?} row {t}"),
                    );
                }
                let mut plain = vec![f32::NAN; time * heads * dim];
                norm_rope(&cpu, &x, layout, None, None, &mut plain);
                assert_bits(
                    &plain[..dim],
                    &x[..dim],
                    "without norm and rotation heads are only gathered",
                );
            }
        }
    }
}
