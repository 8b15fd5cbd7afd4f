//! Convolutions and the norm of recurrent layers.

use candle_core::Tensor;
use dflash_core::{Error, Result};

use super::view::{dense, dim, expect, rows_of, tensor, view};
use crate::kernels::cpu::{self as kernels, Cpu};

/// [`Backend::gated_rms_norm`].
pub(super) fn gated_rms_norm(
    cpu: &Cpu,
    x: &Tensor,
    gate: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<Tensor> {
    let op = "gated_rms_norm";
    let width = dim(weight, 0);
    expect("gated_rms_norm: gate", gate, x.dims())?;
    if width == 0 || x.dims().last() != Some(&width) {
        return Err(Error::shape(
            op,
            format!("a last axis of {width}"),
            format!("{:?}", x.dims()),
        ));
    }
    let (x, gate) = (dense(op, x)?, dense(op, gate)?);
    let mut out = vec![0.0; x.elem_count()];
    let (values, gates, weight) = (view(&x), view(&gate), view(weight));
    kernels::gated_rms_norm(
        cpu,
        values.dense(op)?,
        gates.dense(op)?,
        width,
        weight.dense(op)?,
        eps,
        &mut out,
    );
    tensor(op, out, x.dims())
}

/// [`Backend::short_conv`].
pub(super) fn short_conv(
    cpu: &Cpu,
    window: &Tensor,
    rows: &Tensor,
    kernel: &Tensor,
) -> Result<Tensor> {
    let op = "short_conv";
    let (time, channels) = rows_of(op, rows)?;
    let taps = dim(kernel, 0);
    expect("short_conv: kernel", kernel, &[taps, channels])?;
    expect(
        "short_conv: window",
        window,
        &[1, taps.saturating_sub(1), channels],
    )?;
    let (window, rows, kernel) = (dense(op, window)?, dense(op, rows)?, dense(op, kernel)?);
    let (w, r, k) = (view(&window), view(&rows), view(&kernel));
    let mut out = vec![0.0; time * channels];
    kernels::short_conv(
        cpu,
        w.dense(op)?,
        r.dense(op)?,
        k.dense(op)?,
        channels,
        &mut out,
    );
    tensor(op, out, &[1, time, channels])
}

/// [`Backend::dynamic_conv`].
pub(super) fn dynamic_conv(
    cpu: &Cpu,
    y: &Tensor,
    base: &Tensor,
    dynamic: &Tensor,
) -> Result<Tensor> {
    let op = "dynamic_conv";
    let (time, channels) = rows_of(op, y)?;
    let (taps, groups) = (dim(base, 0), dim(dynamic, 3));
    expect("dynamic_conv: base", base, &[taps, channels])?;
    expect("dynamic_conv: kernels", dynamic, &[1, time, taps, groups])?;
    if groups == 0 || channels % groups != 0 {
        return Err(Error::shape(
            "dynamic_conv: groups",
            format!("a divisor of {channels}"),
            groups,
        ));
    }
    let (y, base, dynamic) = (dense(op, y)?, dense(op, base)?, dense(op, dynamic)?);
    let (base, dynamic) = (view(&base), view(&dynamic));
    let kernel = kernels::DynamicKernel {
        taps,
        base: base.dense(op)?,
        dynamic: dynamic.dense(op)?,
        groups,
        stride: taps * groups,
    };
    let mut out = vec![0.0; time * channels];
    kernels::dynamic_conv(cpu, view(&y).dense(op)?, channels, kernel, &mut out);
    tensor(op, out, &[1, time, channels])
}
