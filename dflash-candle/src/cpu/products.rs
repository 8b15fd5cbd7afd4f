//! Products with weights, and experts made of them.

use candle_core::Tensor;
use dflash_core::backend::MoeParams;
use dflash_core::{Error, Result};

use super::choose;
use super::view::{dense, expect, rows_of, tensor, view};
use super::weight::{CpuExperts, CpuWeight};
use crate::kernels::cpu::{self as kernels, Activation, Cpu};

/// [`Backend::linear`].
pub(super) fn linear(
    cpu: &Cpu,
    weight: &CpuWeight,
    x: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, width) = rows_of("linear", x)?;
    if width != weight.inputs() {
        return Err(Error::shape(
            "linear: input",
            format!("[1, rows, {}]", weight.inputs()),
            format!("{:?}", x.dims()),
        ));
    }
    let x = dense("linear", x)?;
    let x = view(&x);
    let bias = bias
        .map(|b| expect("linear: bias", b, &[weight.outputs()]).map(|()| view(b)))
        .transpose()?;
    let bias = bias.as_ref().map(|b| b.dense("linear: bias")).transpose()?;
    let out = kernels::linear(cpu, x.dense("linear")?, rows, weight.matrix(), bias);
    tensor("linear", out, &[1, rows, weight.outputs()])
}

/// [`Backend::swiglu`].
pub(super) fn swiglu(cpu: &Cpu, gate: &CpuWeight, up: &CpuWeight, x: &Tensor) -> Result<Tensor> {
    let (rows, width) = rows_of("swiglu", x)?;
    let sizes = [gate.inputs(), up.inputs(), gate.outputs()];
    if sizes != [width, width, up.outputs()] {
        return Err(Error::shape(
            "swiglu: input",
            format!("[1, rows, {}]", gate.inputs()),
            format!("{:?}", x.dims()),
        ));
    }
    let x = dense("swiglu", x)?;
    let out = kernels::glu(
        cpu,
        view(&x).dense("swiglu")?,
        rows,
        gate.matrix(),
        up.matrix(),
        Activation::Silu,
    );
    tensor("swiglu", out, &[1, rows, gate.outputs()])
}

/// [`Backend::moe`].
pub(super) fn moe(
    cpu: &Cpu,
    x: &Tensor,
    logits: &Tensor,
    experts: &CpuExperts,
    params: &MoeParams,
) -> Result<Tensor> {
    let op = "moe";
    let (rows, hidden) = rows_of(op, x)?;
    expect("moe: router logits", logits, &[1, rows, experts.count()])?;
    if hidden != experts.hidden() || params.top_k == 0 || params.top_k > experts.count() {
        let expected = format!(
            "[1, rows, {}] and 1 to {} experts per row",
            experts.hidden(),
            experts.count()
        );
        return Err(Error::shape(
            op,
            expected,
            format!("{:?} and {}", x.dims(), params.top_k),
        ));
    }
    let (x, logits) = (dense(op, x)?, dense(op, logits)?);
    let (ids, weights) = choose::routes(cpu, view(&logits).dense(op)?, experts.count(), params);
    let routes = kernels::Routes {
        per_row: params.top_k,
        ids: &ids,
        weights: &weights,
    };
    let mut out = vec![0.0; rows * hidden];
    kernels::moe(
        cpu,
        view(&x).dense(op)?,
        rows,
        routes,
        &experts.matrices(),
        Activation::Silu,
        &mut out,
    );
    tensor(op, out, &[1, rows, hidden])
}
