//! The gated delta rule (Gated Delta Networks, arXiv 2412.06464, equation 10), one row after another.

use super::layers::{sigmoid, softplus};
use super::tensor::{RefTensor, dot};
use crate::backend::DeltaParams;
use crate::backend::fallback::DELTA_NORM_EPS;
use crate::{Error, Result};

pub(super) fn gated_delta(
    state: &RefTensor,
    mixed: &RefTensor,
    decay: &RefTensor,
    strength: &RefTensor,
    params: &DeltaParams<RefTensor>,
) -> Result<(RefTensor, RefTensor)> {
    let DeltaParams {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = *params;
    let rows = mixed.shape().get(1).copied().unwrap_or(0);
    if key_heads == 0 || key_dim == 0 || value_heads % key_heads != 0 || rows == 0 {
        let found = format!("{value_heads} value heads, {key_heads} key heads, {rows} rows");
        return Err(Error::shape(
            "gated_delta",
            "value heads in multiples of key heads and at least one row",
            found,
        ));
    }
    mixed.expect("gated_delta: mixed rows", &[1, rows, params.channels()])?;
    decay.expect("gated_delta: decay", &[1, rows, value_heads])?;
    strength.expect("gated_delta: strength", &[1, rows, value_heads])?;
    state.expect("gated_delta: state", &[value_heads, value_dim, key_dim])?;
    params.a_log.expect("gated_delta: A_log", &[value_heads])?;
    params
        .dt_bias
        .expect("gated_delta: dt_bias", &[value_heads])?;

    let mut s = state.data().to_vec();
    let mut y = Vec::with_capacity(rows * value_heads * value_dim);
    #[expect(clippy::cast_precision_loss, reason = "a head size")]
    let q_scale = 1.0 / (key_dim as f32).sqrt();
    for t in 0..rows {
        let row = &mixed.data()[t * params.channels()..][..params.channels()];
        let (queries, rest) = row.split_at(key_heads * key_dim);
        let (keys, values) = rest.split_at(key_heads * key_dim);
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads) * key_dim;
            let q: Vec<f32> = unit(&queries[key_head..][..key_dim])
                .map(|x| x * q_scale)
                .collect();
            let k: Vec<f32> = unit(&keys[key_head..][..key_dim]).collect();
            let v = &values[head * value_dim..][..value_dim];
            let at = t * value_heads + head;
            let step = softplus(decay.data()[at] + params.dt_bias.data()[head]);
            let keep = (-(params.a_log.data()[head].exp() * step)).exp();
            let beta = sigmoid(strength.data()[at]);
            for (row, v) in s[head * value_dim * key_dim..][..value_dim * key_dim]
                .chunks_exact_mut(key_dim)
                .zip(v)
            {
                row.iter_mut().for_each(|s| *s *= keep);
                let change = beta * (v - dot(row, &k));
                row.iter_mut().zip(&k).for_each(|(s, k)| *s += change * k);
                y.push(dot(row, &q));
            }
        }
    }
    Ok((
        RefTensor::new("gated_delta", y, &[1, rows, value_heads, value_dim])?,
        RefTensor::new("gated_delta: state", s, state.shape())?,
    ))
}

/// `x / sqrt(Σx² + 1e-6)`.
fn unit(x: &[f32]) -> impl Iterator<Item = f32> {
    let length = (dot(x, x) + DELTA_NORM_EPS).sqrt();
    x.iter().map(move |x| x / length)
}
