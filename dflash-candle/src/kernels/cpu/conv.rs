//! Convolutions over time with one short kernel per channel.

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
    let time = rows.len() / channels;
    let all = Shared::new(out);
    cpu.split(channels, 4 * LANES, rows.len() * (taps + 16), |range| {
        for t in 0..time {
            // SAFETY: every channel belongs to one task.
            let out = unsafe { all.part(t * channels + range.start..t * channels + range.end) };
            cpu.isa.run(ShortConv {
                window,
                rows,
                kernel,
                channels,
                taps,
                t,
                start: range.start,
                out,
            });
        }
    });
}

struct ShortConv<'a> {
    window: &'a [f32],
    rows: &'a [f32],
    kernel: &'a [f32],
    channels: usize,
    taps: usize,
    t: usize,
    start: usize,
    out: &'a mut [f32],
}

impl ShortConv<'_> {
    /// The input of tap `j`, from channel `start` on.
    #[inline(always)]
    fn input(&self, j: usize) -> &[f32] {
        let row = self.t + j;
        let (from, row) = if row < self.taps - 1 {
            (self.window, row)
        } else {
            (self.rows, row + 1 - self.taps)
        };
        &from[row * self.channels + self.start..(row + 1) * self.channels]
    }
}

impl Kernel for ShortConv<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let len = self.out.len();
        let mut at = 0;
        while at < len {
            let width = LANES.min(len - at);
            let mut acc = s.splat(0.0);
            for j in 0..self.taps {
                let x = lanes(s, &self.input(j)[at..at + width]);
                let k = lanes(
                    s,
                    &self.kernel[j * self.channels + self.start + at..][..width],
                );
                acc = s.fma(x, k, acc);
            }
            let mut result = [0.0; LANES];
            s.store(&mut result, silu(s, acc));
            self.out[at..at + width].copy_from_slice(&result[..width]);
            at += width;
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
    let width = channels / groups;
    let all = Shared::new(out);
    cpu.split(time, 1, y.len() * taps * 2, |rows| {
        for t in rows {
            // SAFETY: every row belongs to one task.
            let out = unsafe { all.part(t * channels..(t + 1) * channels) };
            out.fill(0.0);
            for j in 0..taps.min(t + 1) {
                let row = &y[(t - j) * channels..(t - j + 1) * channels];
                let factors = &dynamic[t * stride + j * groups..][..groups];
                let base = &base[j * channels..(j + 1) * channels];
                for (g, factor) in factors.iter().enumerate() {
                    let range = g * width..(g + 1) * width;
                    for ((out, base), y) in out[range.clone()]
                        .iter_mut()
                        .zip(&base[range.clone()])
                        .zip(&row[range])
                    {
                        *out += (base + factor) * y;
                    }
                }
            }
        }
    });
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
