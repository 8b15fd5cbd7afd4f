//! Convolutions over time with one short kernel per channel.

use std::ops::Range;

use super::isa::Kernel;
use super::math::{pad, silu};
use super::simd::{LANES, Simd};
use super::{Cpu, Shared};

/// Causal depthwise convolution followed by silu: the short convolution of a gated-delta layer.
///
/// With the rows of `window` `[taps − 1, channels]` in front of `rows` `[time, channels]`, oldest
/// first, `out[t] = silu(Σ_j row[t + j] · kernel[j])`; `kernel` is `[taps, channels]` and its last
/// tap multiplies the current row.
///
/// # Panics
/// If a slice does not match its shape.
pub fn short_conv(
    cpu: &Cpu,
    window: &[f32],
    rows: &[f32],
    kernel: &[f32],
    channels: usize,
    out: &mut [f32],
) {
    assert!(
        channels > 0 && kernel.len() >= channels && kernel.len().is_multiple_of(channels),
        "invariant: a kernel has whole taps"
    );
    let taps = kernel.len() / channels;
    assert_eq!(
        window.len(),
        (taps - 1) * channels,
        "invariant: the window has one row less than the kernel has taps"
    );
    assert!(rows.len().is_multiple_of(channels), "invariant: whole rows");
    assert_eq!(
        out.len(),
        rows.len(),
        "invariant: the output has the shape of the rows"
    );
    let all = Shared::new(out);
    // The silu of a number costs as much as some thirty multiply-adds.
    cpu.split(channels, 4 * LANES, rows.len() * (taps + 30), |range| {
        cpu.isa.run(ShortConv {
            window,
            rows,
            kernel,
            channels,
            range,
            // Tasks write disjoint channels of it.
            out: all,
        });
    });
}

struct ShortConv<'a> {
    window: &'a [f32],
    rows: &'a [f32],
    kernel: &'a [f32],
    channels: usize,
    /// The channels to compute.
    range: Range<usize>,
    out: Shared<'a>,
}

impl Kernel for ShortConv<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let channels = self.channels;
        let before = self.window.len() / channels;
        let time = self.rows.len() / channels;
        for at in self.range.clone().step_by(LANES) {
            let width = LANES.min(self.range.end - at);
            for t in 0..time {
                let mut acc = s.splat(0.0);
                for j in 0..=before {
                    let row = t + j;
                    let x = match row.checked_sub(before) {
                        None => &self.window[row * channels + at..][..width],
                        Some(row) => &self.rows[row * channels + at..][..width],
                    };
                    let k = &self.kernel[j * channels + at..][..width];
                    acc = s.fma(lanes(s, x), lanes(s, k), acc);
                }
                let result = silu(s, acc);
                // SAFETY: every channel belongs to one task.
                let out = unsafe { self.out.part(t * channels + at..t * channels + at + width) };
                match out.first_chunk_mut::<LANES>() {
                    Some(out) => s.store(out, result),
                    None => {
                        let mut padded = [0.0; LANES];
                        s.store(&mut padded, result);
                        out.copy_from_slice(&padded[..width]);
                    }
                }
            }
        }
    }
}

/// Up to sixteen numbers as a vector, followed by zeros.
#[inline(always)]
fn lanes<S: Simd>(s: S, x: &[f32]) -> S::V {
    match x.first_chunk::<LANES>() {
        Some(chunk) => s.load(chunk),
        None => s.load(&pad(x)),
    }
}

/// The kernels of a dynamic convolution: a learned part and one that each row computes.
#[derive(Debug, Clone, Copy)]
pub struct DynamicKernel<'a> {
    /// Taps; tap 0 is the row itself.
    pub taps: usize,
    /// `[taps, channels]`.
    pub base: &'a [f32],
    /// `[taps, groups]` for each row, rows `stride` numbers apart.
    pub dynamic: &'a [f32],
    /// Groups of neighbouring channels that share a dynamic factor.
    pub groups: usize,
    /// Distance between the dynamic factors of neighbouring rows.
    pub stride: usize,
}

/// The short dynamic convolution of DFlash 2:
/// `out[t] = Σ_{j < taps} (base[j] + dynamic[t, j] of the channel's group) · y[t − j]`, rows before
/// the block being zero.
///
/// # Panics
/// If a slice does not match its shape.
pub fn dynamic_conv(
    cpu: &Cpu,
    y: &[f32],
    channels: usize,
    kernel: DynamicKernel<'_>,
    out: &mut [f32],
) {
    let DynamicKernel {
        taps,
        base,
        dynamic,
        groups,
        stride,
    } = kernel;
    assert!(
        channels > 0 && y.len().is_multiple_of(channels),
        "invariant: whole rows"
    );
    assert!(
        groups > 0 && channels.is_multiple_of(groups),
        "invariant: groups of equal size"
    );
    assert_eq!(
        base.len(),
        taps * channels,
        "invariant: a base factor per tap and channel"
    );
    assert_eq!(
        out.len(),
        y.len(),
        "invariant: the output has the shape of the input"
    );
    let time = y.len() / channels;
    assert!(
        time == 0 || dynamic.len() >= (time - 1) * stride + taps * groups,
        "invariant: dynamic factors of every row"
    );
    let all = Shared::new(out);
    cpu.split(time, 1, y.len() * taps * 2, |rows| {
        for t in rows {
            // SAFETY: every row belongs to one task.
            let out = unsafe { all.part(t * channels..(t + 1) * channels) };
            cpu.isa.run(DynamicConv {
                y: &y[..(t + 1) * channels],
                kernel,
                t,
                out,
            });
        }
    });
}

/// One row of a dynamic convolution.
struct DynamicConv<'a> {
    /// The rows up to this one.
    y: &'a [f32],
    kernel: DynamicKernel<'a>,
    t: usize,
    out: &'a mut [f32],
}

impl Kernel for DynamicConv<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        let Self { y, kernel, t, out } = self;
        let channels = out.len();
        let (groups, width) = (kernel.groups, channels / kernel.groups);
        out.fill(0.0);
        for j in 0..kernel.taps.min(t + 1) {
            let row = &y[(t - j) * channels..(t - j + 1) * channels];
            let factors = &kernel.dynamic[t * kernel.stride + j * groups..][..groups];
            let base = &kernel.base[j * channels..(j + 1) * channels];
            let parts = out
                .chunks_exact_mut(width)
                .zip(base.chunks_exact(width))
                .zip(row.chunks_exact(width));
            for (((out, base), y), factor) in parts.zip(factors) {
                for ((out, base), y) in out.iter_mut().zip(base).zip(y) {
                    *out += (base + factor) * y;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Numbers, assert_bits, assert_close, contexts};
    use super::*;

    #[test]
    fn the_short_convolution_matches_and_can_be_cut_anywhere() {
        for cpu in contexts() {
            for (taps, channels, time) in
                [(1, 3, 4), (2, 17, 1), (4, 64, 9), (4, 1000, 20), (3, 33, 2)]
            {
                let mut n = Numbers::new(channels as u64);
                let all = n.vec((taps - 1 + time) * channels);
                let (window, rows) = all.split_at((taps - 1) * channels);
                let kernel = n.vec(taps * channels);
                let mut out = vec![f32::NAN; rows.len()];
                short_conv(&cpu, window, rows, &kernel, channels, &mut out);
                let expected: Vec<f64> = (0..rows.len())
                    .map(|i| {
                        let (t, c) = (i / channels, i % channels);
                        let x: f64 = (0..taps)
                            .map(|j| {
                                f64::from(all[(t + j) * channels + c])
                                    * f64::from(kernel[j * channels + c])
                            })
                            .sum();
                        x / (1.0 + (-x).exp())
                    })
                    .collect();
                assert_close(
                    &out,
                    &expected,
                    1e-6,
                    &format!("{cpu:?} {taps} {channels} {time}"),
                );
                for t in 0..time {
                    let mut one = vec![f32::NAN; channels];
                    let window = &all[t * channels..(t + taps - 1) * channels];
                    short_conv(
                        &cpu,
                        window,
                        &rows[t * channels..(t + 1) * channels],
                        &kernel,
                        channels,
                        &mut one,
                    );
                    assert_bits(
                        &one,
                        &out[t * channels..(t + 1) * channels],
                        &format!("{cpu:?} row {t}"),
                    );
                }
            }
        }
    }

    #[test]
    fn the_dynamic_convolution_matches() {
        for cpu in contexts() {
            for (taps, channels, groups, time) in [
                (2, 6, 3, 1),
                (2, 64, 4, 16),
                (3, 35, 5, 2),
                (2, 192, 12, 70),
            ] {
                let mut n = Numbers::new(channels as u64);
                let (y, base) = (n.vec(time * channels), n.vec(taps * channels));
                // The factors of the other side lie between those of neighbouring rows.
                let stride = 2 * taps * groups;
                let dynamic = n.vec(time * stride);
                let kernel = DynamicKernel {
                    taps,
                    base: &base,
                    dynamic: &dynamic[taps * groups..],
                    groups,
                    stride,
                };
                let mut out = vec![f32::NAN; y.len()];
                dynamic_conv(&cpu, &y, channels, kernel, &mut out);
                let expected: Vec<f64> = (0..y.len())
                    .map(|i| {
                        let (t, c) = (i / channels, i % channels);
                        (0..taps.min(t + 1))
                            .map(|j| {
                                let factor = dynamic[t * stride
                                    + taps * groups
                                    + j * groups
                                    + c / (channels / groups)];
                                (f64::from(base[j * channels + c]) + f64::from(factor))
                                    * f64::from(y[(t - j) * channels + c])
                            })
                            .sum()
                    })
                    .collect();
                assert_close(
                    &out,
                    &expected,
                    1e-6,
                    &format!("{cpu:?} {taps} {channels} {groups} {time}"),
                );
                let first = time / 2 + 1;
                let mut part = vec![f32::NAN; first * channels];
                dynamic_conv(&cpu, &y[..first * channels], channels, kernel, &mut part);
                assert_bits(
                    &part,
                    &out[..first * channels],
                    "earlier rows do not depend on later ones",
                );
            }
        }
    }
}
