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
