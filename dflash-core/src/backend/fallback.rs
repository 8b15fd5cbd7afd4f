//! Composite defaults of the fused operations, written with required operations only.
//!
//! They are correct on every backend and fast on none: a backend overrides those that matter to it,
//! and conformance compares its version with the reference. Numbers that a fused operation would keep in registers
//! are kept in float32 here, and results are cast to the backend's activation format at the end.
//!
//! What needs a decision per token (proposing, selecting, drawing) is done on the host by the plain
//! functions of [`host`]; a backend whose tensors already are in host memory calls those directly
//! and saves the read-backs.

pub mod host;

use super::{Backend, DeltaParams, Drafted, PathRule, Unary};
use crate::spec::{ProposalRule, RowRule, Verdict};
use crate::{DType, Error, Result};

/// Added to the squared length of q and k before they are divided by it (the gated delta rule's own constant).
pub(crate) const DELTA_NORM_EPS: f32 = 1e-6;

/// Default of [`Backend::swiglu`].
///
/// # Errors
/// The backend's.
pub fn swiglu<B: Backend>(
    b: &B,
    gate: &B::Weight,
    up: &B::Weight,
    x: &B::Tensor,
) -> Result<B::Tensor> {
    b.mul(
        &b.unary(&b.linear(gate, x, None)?, Unary::Silu)?,
        &b.linear(up, x, None)?,
    )
}

/// Default of [`Backend::gated_rms_norm`].
///
/// # Errors
/// The backend's.
pub fn gated_rms_norm<B: Backend>(
    b: &B,
    x: &B::Tensor,
    gate: &B::Tensor,
    weight: &B::Tensor,
    eps: f32,
) -> Result<B::Tensor> {
    let wide = |t| b.cast(t, DType::F32);
    let normed = b.rms_norm(&wide(x)?, Some(&wide(weight)?), eps)?;
    b.cast(
        &b.mul(&normed, &b.unary(&wide(gate)?, Unary::Silu)?)?,
        b.dtype(),
    )
}

/// Default of [`Backend::short_conv`]: one shifted product per tap.
///
/// # Errors
/// The backend's, or sizes that do not fit.
pub fn short_conv<B: Backend>(
    b: &B,
    window: &B::Tensor,
    rows: &B::Tensor,
    kernel: &B::Tensor,
) -> Result<B::Tensor> {
    let (taps, channels, count) = (b.dim(kernel, 0), b.dim(kernel, 1), b.dim(rows, 1));
    expect_dims(b, "short convolution: rows", rows, &[1, count, channels])?;
    expect_dims(
        b,
        "short convolution: window",
        window,
        &[1, taps.saturating_sub(1), channels],
    )?;
    let kernel = b.cast(kernel, DType::F32)?;
    let rows = b.cast(rows, DType::F32)?;
    let all = if taps > 1 {
        b.concat(&[&b.cast(window, DType::F32)?, &rows], 1)?
    } else {
        rows
    };
    let sum = sum_of(b, taps, |tap| {
        let factor = b.reshape(&b.slice(&kernel, 0, tap, 1)?, &[1, 1, channels])?;
        b.mul(&b.slice(&all, 1, tap, count)?, &factor)
    })?;
    b.cast(&b.unary(&sum, Unary::Silu)?, b.dtype())
}

/// Default of [`Backend::gated_delta`] (Gated Delta Networks, arXiv 2412.06464, equation 10).
///
/// Value heads that share a key head are an axis of their own, so that keys broadcast over them.
///
/// # Errors
/// The backend's, or sizes that do not fit.
pub fn gated_delta<B: Backend>(
    b: &B,
    state: &B::Tensor,
    mixed: &B::Tensor,
    decay: &B::Tensor,
    strength: &B::Tensor,
    params: &DeltaParams<B::Tensor>,
) -> Result<(B::Tensor, B::Tensor)> {
    let DeltaParams {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = *params;
    let rows = b.dim(mixed, 1);
    if key_heads == 0 || key_dim == 0 || value_heads % key_heads != 0 || rows == 0 {
        let found = format!("{value_heads} value heads, {key_heads} key heads, {rows} rows");
        return Err(Error::shape(
            "gated delta",
            "value heads in multiples of key heads and at least one row",
            found,
        ));
    }
    expect_dims(
        b,
        "gated delta: mixed rows",
        mixed,
        &[1, rows, params.channels()],
    )?;
    expect_dims(b, "gated delta: decay", decay, &[1, rows, value_heads])?;
    expect_dims(
        b,
        "gated delta: strength",
        strength,
        &[1, rows, value_heads],
    )?;
    expect_dims(
        b,
        "gated delta: state",
        state,
        &[value_heads, value_dim, key_dim],
    )?;
    let shared = value_heads / key_heads;
    let wide = |t| b.cast(t, DType::F32);

    let mixed = wide(mixed)?;
    let part = |start, len| b.slice(&mixed, 2, start, len);
    let key_size = key_heads * key_dim;
    let keys = [rows, key_heads, 1, 1, key_dim];
    #[expect(clippy::cast_precision_loss, reason = "a head size")]
    let width = key_dim as f32;
    // x / sqrt(Σx² + e) = rms_norm(x, e / n) / sqrt(n); q is divided by sqrt(n) once more.
    let unit = |t: B::Tensor, scale: f32| -> Result<B::Tensor> {
        b.affine(
            &b.rms_norm(&b.reshape(&t, &keys)?, None, DELTA_NORM_EPS / width)?,
            scale,
            0.0,
        )
    };
    let q = unit(part(0, key_size)?, 1.0 / width)?;
    let k = unit(part(key_size, key_size)?, 1.0 / width.sqrt())?;
    let v = b.reshape(
        &part(2 * key_size, value_heads * value_dim)?,
        &[rows, key_heads, shared, value_dim, 1],
    )?;
    let per_head = [rows, key_heads, shared, 1, 1];
    let dt_bias = b.reshape(&wide(&params.dt_bias)?, &[1, 1, value_heads])?;
    let rate = b.reshape(
        &b.unary(&wide(&params.a_log)?, Unary::Exp)?,
        &[1, 1, value_heads],
    )?;
    let step = b.unary(&b.add(&wide(decay)?, &dt_bias)?, Unary::Softplus)?;
    let keep = b.unary(&b.affine(&b.mul(&step, &rate)?, -1.0, 0.0)?, Unary::Exp)?;
    let keep = b.reshape(&keep, &per_head)?;
    let beta = b.reshape(&b.unary(&wide(strength)?, Unary::Sigmoid)?, &per_head)?;

    let mut s = b.reshape(&wide(state)?, &[1, key_heads, shared, value_dim, key_dim])?;
    let mut outputs = Vec::with_capacity(rows);
    for t in 0..rows {
        let row = |x| b.slice(x, 0, t, 1);
        let key = row(&k)?;
        s = b.mul(&s, &row(&keep)?)?;
        let predicted = b.sum_last(&b.mul(&s, &key)?)?;
        let error = b.add(&row(&v)?, &b.affine(&predicted, -1.0, 0.0)?)?;
        s = b.add(&s, &b.mul(&b.mul(&error, &row(&beta)?)?, &key)?)?;
        outputs.push(b.sum_last(&b.mul(&s, &row(&q)?)?)?);
    }
    let y = b.concat(&outputs.iter().collect::<Vec<_>>(), 0)?;
    let y = b.cast(
        &b.reshape(&y, &[1, rows, value_heads, value_dim])?,
        b.dtype(),
    )?;
    Ok((y, b.reshape(&s, &[value_heads, value_dim, key_dim])?))
}

/// Default of [`Backend::dynamic_conv`].
///
/// # Errors
/// The backend's, or sizes that do not fit.
pub fn dynamic_conv<B: Backend>(
    b: &B,
    y: &B::Tensor,
    base: &B::Tensor,
    dynamic: &B::Tensor,
) -> Result<B::Tensor> {
    let (rows, dim, taps, groups) = (b.dim(y, 1), b.dim(y, 2), b.dim(base, 0), b.dim(dynamic, 3));
    if groups == 0 || dim % groups != 0 {
        return Err(Error::shape(
            "dynamic convolution: groups",
            format!("a divisor of {dim}"),
            groups,
        ));
    }
    expect_dims(b, "dynamic convolution: base", base, &[taps, dim])?;
    expect_dims(
        b,
        "dynamic convolution: dynamic",
        dynamic,
        &[1, rows, taps, groups],
    )?;
    let size = dim / groups;
    let (base, dynamic) = (b.cast(base, DType::F32)?, b.cast(dynamic, DType::F32)?);
    let y = b.reshape(&b.cast(y, DType::F32)?, &[1, rows, groups, size])?;
    let sum = sum_of(b, taps.min(rows), |tap| {
        let fixed = b.reshape(&b.slice(&base, 0, tap, 1)?, &[1, 1, groups, size])?;
        let moving = b.reshape(&b.slice(&dynamic, 2, tap, 1)?, &[1, rows, groups, 1])?;
        let factor = b.add(&fixed, &moving)?;
        if tap == 0 {
            return b.mul(&factor, &y);
        }
        let before = b.upload(&vec![0.0; tap * dim], &[1, tap, groups, size], DType::F32)?;
        b.mul(
            &factor,
            &b.concat(&[&before, &b.slice(&y, 1, 0, rows - tap)?], 1)?,
        )
    })?;
    b.cast(&b.reshape(&sum, &[1, rows, dim])?, b.dtype())
}

/// Default of [`Backend::propose`]: reads the logits back once.
///
/// # Errors
/// The backend's, or sizes that do not fit.
pub fn propose<B: Backend>(b: &B, logits: &B::Tensor, rule: &ProposalRule) -> Result<Drafted<B>> {
    let vocab = slot_logits(b, logits, rule)?;
    upload_picked(b, &host::propose(&b.read(logits)?, vocab, rule)?)
}

/// Default of [`Backend::path_select`]: reads the logits back, then the candidates' rows of both codebooks.
///
/// # Errors
/// The backend's, or sizes that do not fit.
pub fn path_select<B: Backend>(
    b: &B,
    logits: &B::Tensor,
    hidden: &B::Tensor,
    path: &PathRule<'_, B>,
    rule: &ProposalRule,
) -> Result<Drafted<B>> {
    let vocab = slot_logits(b, logits, rule)?;
    let (slots, rank) = (b.dim(logits, 1), b.dim(hidden, 2));
    expect_dims(b, "path selection: hidden rows", hidden, &[1, slots, rank])?;
    let candidates = host::candidates(&b.read(logits)?, vocab, path.top_k)?;
    // A slot's predecessor is the anchor or one of the slot before's candidates: all rows come in one read.
    let before: Vec<u32> = std::iter::once(path.anchor)
        .chain(candidates.ids().iter().copied())
        .collect();
    let predecessors = b.embedding(path.predecessor, &b.upload_ids(&before)?, DType::F32)?;
    let successors = b.embedding(path.successor, &b.upload_ids(candidates.ids())?, DType::F32)?;
    let rows = b.read(&b.concat(
        &[&b.cast(hidden, DType::F32)?, &predecessors, &successors],
        1,
    )?)?;
    let (hidden, rows) = rows.split_at(slots * rank);
    let (predecessors, successors) = rows.split_at(before.len() * rank);
    let codes = host::Codes {
        rank,
        hidden,
        predecessors,
        successors,
    };
    upload_picked(b, &host::walk(&candidates, &codes, rule)?)
}

/// Default of [`Backend::draw`].
///
/// # Errors
/// The backend's, or sizes that do not fit.
pub fn draw<B: Backend>(
    b: &B,
    logits: &B::Tensor,
    draft: Option<&Drafted<B>>,
    rule: &RowRule<'_>,
) -> Result<Result<Verdict, usize>> {
    let (rows, vocab) = (b.dim(logits, 1), b.dim(logits, 2));
    expect_dims(b, "drawing: logits", logits, &[1, rows, vocab])?;
    let numbers = b.read(logits)?;
    let picked = draft
        .map(|d| -> Result<host::Picked> {
            let rivals = d.rivals.as_ref().map(|r| b.read_ids(r)).transpose()?;
            host::Picked::from_parts(b.read_ids(&d.ids)?, &b.read(&d.finite)?, rivals.as_deref())
        })
        .transpose()?;
    host::draw(&numbers, vocab, picked, rule)
}

/// Brings proposals to the device.
pub fn upload_picked<B: Backend>(b: &B, picked: &host::Picked) -> Result<Drafted<B>> {
    Ok(Drafted {
        rows: picked.ids.len(),
        ids: b.upload_ids(&picked.ids)?,
        finite: b.upload(&[f32::from(u8::from(picked.finite))], &[1], DType::F32)?,
        rivals: picked
            .rivals
            .map(|r| b.upload_ids(&[r.argmax, r.coupled]))
            .transpose()?,
    })
}

/// Checks that the logits have a row per slot; their vocabulary size.
pub fn slot_logits<B: Backend>(b: &B, logits: &B::Tensor, rule: &ProposalRule) -> Result<usize> {
    let vocab = b.dim(logits, 2);
    expect_dims(
        b,
        "proposing: logits",
        logits,
        &[1, rule.rows.saturating_sub(1), vocab],
    )?;
    if vocab == 0 {
        return Err(Error::shape(
            "proposing: vocabulary",
            "at least one token",
            0,
        ));
    }
    Ok(vocab)
}

/// Checks the leading sizes of a tensor.
pub fn expect_dims<B: Backend>(b: &B, what: &str, t: &B::Tensor, expected: &[usize]) -> Result<()> {
    let found: Vec<usize> = (0..expected.len()).map(|axis| b.dim(t, axis)).collect();
    if found == expected {
        Ok(())
    } else {
        Err(Error::shape(
            what,
            format!("{expected:?}"),
            format!("{found:?}"),
        ))
    }
}

/// The sum of terms 0 to `count`, first to last.
fn sum_of<B: Backend>(
    b: &B,
    count: usize,
    term: impl Fn(usize) -> Result<B::Tensor>,
) -> Result<B::Tensor> {
    if count == 0 {
        return Err(Error::shape(
            "convolution",
            "at least one tap and one row",
            0,
        ));
    }
    let mut sum = term(0)?;
    for index in 1..count {
        sum = b.add(&sum, &term(index)?)?;
    }
    Ok(sum)
}
