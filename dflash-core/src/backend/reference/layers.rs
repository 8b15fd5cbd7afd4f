//! Norms, activations and short convolutions.

use super::tensor::{RefTensor, dot};
use crate::Result;

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, in the form that neither overflows nor loses small results.
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

pub(super) fn rms_norm(x: &RefTensor, weight: Option<&RefTensor>, eps: f32) -> Result<RefTensor> {
    let Some(&width) = x.shape().last() else {
        return Err(x.misfit("rms_norm", "at least one axis"));
    };
    if let Some(weight) = weight {
        weight.expect("rms_norm: weight", &[width])?;
    }
    let mut data = x.data().to_vec();
    for row in data.chunks_exact_mut(width.max(1)) {
        #[expect(clippy::cast_precision_loss, reason = "a feature count")]
        let mean = dot(row, row) / width as f32;
        let factor = 1.0 / (mean + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            *x *= factor;
            if let Some(weight) = weight {
                *x *= weight.data()[i];
            }
        }
    }
    RefTensor::new("rms_norm", data, x.shape())
}

pub(super) fn short_conv(
    window: &RefTensor,
    rows: &RefTensor,
    kernel: &RefTensor,
) -> Result<RefTensor> {
    let &[taps, channels] = kernel.shape() else {
        return Err(kernel.misfit("short_conv: kernel", "[taps, channels]"));
    };
    let &[1, count, _] = rows.shape() else {
        return Err(rows.misfit("short_conv: rows", "[1, rows, channels]"));
    };
    if taps == 0 {
        return Err(kernel.misfit("short_conv: kernel", "at least one tap"));
    }
    rows.expect("short_conv: rows", &[1, count, channels])?;
    window.expect("short_conv: window", &[1, taps - 1, channels])?;
    // Input t is a row of the window, or row t - (taps - 1) of the call.
    let input = |t: usize| {
        if t + 1 < taps {
            &window.data()[t * channels..]
        } else {
            &rows.data()[(t + 1 - taps) * channels..]
        }
    };
    let mut data = vec![0.0f32; count * channels];
    for t in 0..count {
        let out = &mut data[t * channels..][..channels];
        for tap in 0..taps {
            let factors = &kernel.data()[tap * channels..][..channels];
            for (out, (x, factor)) in out.iter_mut().zip(input(t + tap).iter().zip(factors)) {
                *out += x * factor;
            }
        }
        out.iter_mut().for_each(|x| *x = silu(*x));
    }
    RefTensor::new("short_conv", data, rows.shape())
}

pub(super) fn dynamic_conv(
    y: &RefTensor,
    base: &RefTensor,
    dynamic: &RefTensor,
) -> Result<RefTensor> {
    let &[1, rows, dim] = y.shape() else {
        return Err(y.misfit("dynamic_conv: rows", "[1, rows, dim]"));
    };
    let &[1, _, taps, groups] = dynamic.shape() else {
        return Err(dynamic.misfit("dynamic_conv: dynamic", "[1, rows, taps, groups]"));
    };
    if taps == 0 || groups == 0 || dim % groups != 0 {
        return Err(dynamic.misfit(
            "dynamic_conv: dynamic",
            format!("at least one tap, and groups that divide {dim}"),
        ));
    }
    base.expect("dynamic_conv: base", &[taps, dim])?;
    dynamic.expect("dynamic_conv: dynamic", &[1, rows, taps, groups])?;
    let size = dim / groups;
    let mut data = vec![0.0f32; rows * dim];
    for t in 0..rows {
        for tap in 0..taps.min(t + 1) {
            for channel in 0..dim {
                let factor = base.data()[tap * dim + channel]
                    + dynamic.data()[(t * taps + tap) * groups + channel / size];
                data[t * dim + channel] += factor * y.data()[(t - tap) * dim + channel];
            }
        }
    }
    RefTensor::new("dynamic_conv", data, y.shape())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(numbers: &[f32], shape: &[usize]) -> RefTensor {
        RefTensor::new("given", numbers.to_vec(), shape).expect("as many numbers")
    }

    #[test]
    fn activations_keep_small_and_large_results() {
        assert_eq!(
            [sigmoid(0.0), sigmoid(200.0), sigmoid(-200.0)],
            [0.5, 1.0, 0.0]
        );
        assert_eq!([silu(0.0), silu(200.0)], [0.0, 200.0]);
        assert_eq!(softplus(0.0), std::f32::consts::LN_2);
        assert_eq!([softplus(100.0), softplus(200.0)], [100.0, 200.0]);
        assert!(
            (softplus(-20.0) / 2.061_153_6e-9 - 1.0).abs() < 1e-6,
            "{}",
            softplus(-20.0)
        );
        assert!(softplus(f32::NAN).is_nan() && silu(f32::NAN).is_nan());
    }

    #[test]
    fn norm_by_hand() {
        let x = tensor(&[3.0, 4.0, 0.0, 0.0], &[1, 2, 2]);
        let normed = rms_norm(&x, Some(&tensor(&[2.0, -1.0], &[2])), 3.5).expect("fits");
        // Mean square 12.5, plus 3.5: divided by 4.
        assert_eq!(normed.data(), [1.5, -1.0, 0.0, -0.0]);
        assert!(rms_norm(&x, Some(&tensor(&[1.0], &[1])), 0.0).is_err());
    }

    #[test]
    fn convolution_by_hand() {
        let (window, kernel) = (
            tensor(&[1.0, 10.0], &[1, 1, 2]),
            tensor(&[2.0, 3.0, 5.0, 7.0], &[2, 2]),
        );
        let found = short_conv(
            &window,
            &tensor(&[1.0, -1.0, 0.5, 0.25], &[1, 2, 2]),
            &kernel,
        )
        .expect("fits");
        // The last tap is the row itself.
        let expected = [2.0 + 5.0, 30.0 - 7.0, 2.0 + 2.5, -3.0 + 1.75].map(silu);
        assert_eq!(found.data(), expected);
    }

    #[test]
    fn convolution_of_one_tap_has_no_window() {
        let found = short_conv(
            &tensor(&[], &[1, 0, 2]),
            &tensor(&[1.0, 2.0], &[1, 1, 2]),
            &tensor(&[3.0, 4.0], &[1, 2]),
        );
        assert_eq!(found.expect("fits").data(), [3.0, 8.0].map(silu));
        assert!(
            short_conv(
                &tensor(&[1.0; 2], &[1, 1, 2]),
                &tensor(&[1.0; 2], &[1, 1, 2]),
                &tensor(&[1.0; 2], &[1, 2])
            )
            .is_err()
        );
        assert!(
            short_conv(
                &tensor(&[], &[1, 0, 2]),
                &tensor(&[], &[1, 0, 2]),
                &tensor(&[], &[0, 2])
            )
            .is_err()
        );
    }

    #[test]
    fn a_one_hot_row_reaches_itself_and_the_next() {
        let (rows, dim) = (5, 4);
        let base = tensor(&[1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0], &[2, dim]);
        // Row t, tap j, group g: 100 t + 0.1 j + 0.01 g, in two groups of two channels.
        let dynamic: Vec<f32> = (0..rows)
            .flat_map(|t| {
                [0.0, 0.01, 0.1, 0.11]
                    .map(|x| x + 100.0 * f32::from(u8::try_from(t).expect("small")))
            })
            .collect();
        let dynamic = tensor(&dynamic, &[1, rows, 2, 2]);
        for hot in 0..rows {
            let mut y = vec![0.0; rows * dim];
            y[hot * dim..][..dim].copy_from_slice(&[1.0, 0.0, -1.0, 2.0]);
            let found = dynamic_conv(&tensor(&y, &[1, rows, dim]), &base, &dynamic).expect("fits");
            for (t, row) in found.data().chunks(dim).enumerate() {
                let moved = 100.0 * f32::from(u8::try_from(t).expect("small"));
                let expected = match t.checked_sub(hot) {
                    Some(0) => [
                        1.0 + moved,
                        0.0,
                        -(3.0 + (0.01 + moved)),
                        2.0 * (4.0 + (0.01 + moved)),
                    ],
                    Some(1) => [
                        10.0 + (0.1 + moved),
                        0.0,
                        -(30.0 + (0.11 + moved)),
                        2.0 * (40.0 + (0.11 + moved)),
                    ],
                    _ => [0.0; 4],
                };
                assert_eq!(row, expected, "row {t} of a block that is hot in row {hot}");
            }
        }
        assert!(
            dynamic_conv(
                &tensor(&[0.0; 15], &[1, 5, 3]),
                &tensor(&[0.0; 6], &[2, 3]),
                &dynamic
            )
            .is_err()
        );
    }
}
