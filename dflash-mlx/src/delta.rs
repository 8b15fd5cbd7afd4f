//! Recurrent layers: the gated delta rule and the convolutions.

use dflash_core::backend::DeltaParams;
use dflash_core::{Error, Result};
use mlx_rs::error::Exception;
use mlx_rs::fast::rms_norm;
use mlx_rs::ops::{
    as_strided, broadcast_to, concatenate, eye, logaddexp, maximum, sigmoid, sum_axis, tril,
    zeros_dtype,
};
use mlx_rs::{Array, Dtype};

use crate::array::{at, cast, int, part, silu, size, sizes, wide};

/// Added to the squared length of q and k.
const LENGTH_EPS: f32 = 1e-6;
/// Rows that are solved together. Their coupling is a triangular system of this size, whose cost
/// grows with its square; fewer rows at a time mean more operations per row.
const TOGETHER: usize = 16;

/// Where the logarithm of a decay is cut off: its exponential is zero there, and sums of larger
/// numbers would lose the small differences that count.
const LEAST_LOG: f32 = -100.0;

/// Rows of one call, per value head, float32.
struct Rows {
    /// `[heads, rows, key_dim]`, of unit length; q also divided by √key_dim.
    q: Array,
    k: Array,
    /// `[heads, rows, value_dim]`.
    v: Array,
    /// ln of the decay, `[heads, rows, 1]`.
    log_decay: Array,
    /// `[heads, rows, 1]`.
    strength: Array,
}

/// The gated delta rule (Gated Delta Networks, arXiv 2412.06464, equation 10) for several rows at once.
///
/// With decays g, L_t = Σ_{i≤t} ln g_i, and corrections d_t = β_t (v_t − prediction), the state after
/// row t is S_t = e^{L_t} S_0 + Σ_{i≤t} e^{L_t − L_i} d_i k_iᵀ. A prediction reads earlier corrections
/// only, so all d solve one unit lower triangular system, whose inverse is a short product of powers.
/// That makes a block a dozen products, where a scan takes half a dozen operations for each row.
pub(crate) fn gated_delta(
    state: &Array,
    mixed: &Array,
    decay: &Array,
    strength: &Array,
    params: &DeltaParams<Array>,
) -> Result<(Array, Array)> {
    let &DeltaParams {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = params;
    let rows = size(mixed, 1);
    if key_heads == 0 || key_dim == 0 || value_heads % key_heads != 0 || rows == 0 {
        let found = format!("{value_heads} value heads, {key_heads} key heads, {rows} rows");
        let expected = "value heads in multiples of key heads and at least one row";
        return Err(Error::shape("gated delta", expected, found));
    }
    for (what, t, expected) in [
        (
            "gated delta: mixed rows",
            mixed,
            vec![1, rows, params.channels()],
        ),
        ("gated delta: decay", decay, vec![1, rows, value_heads]),
        (
            "gated delta: strength",
            strength,
            vec![1, rows, value_heads],
        ),
        (
            "gated delta: state",
            state,
            vec![value_heads, value_dim, key_dim],
        ),
    ] {
        if sizes(t) != expected {
            return Err(Error::shape(
                what,
                format!("{expected:?}"),
                format!("{:?}", t.shape()),
            ));
        }
    }
    at(
        "gated_delta",
        scanned(state, mixed, decay, strength, params),
    )
}

fn scanned(
    state: &Array,
    mixed: &Array,
    decay: &Array,
    strength: &Array,
    params: &DeltaParams<Array>,
) -> Result<(Array, Array), Exception> {
    let all = prepared(mixed, decay, strength, params)?;
    let rows = size(mixed, 1);
    // As `[key_dim, value_dim]`, so that rows of keys multiply it from the left.
    let mut state = wide(state)?.swap_axes(1, 2)?;
    let mut outputs = Vec::new();
    for start in (0..rows).step_by(TOGETHER) {
        let count = TOGETHER.min(rows - start);
        let some = |t: &Array| part(t, 1, start, count);
        let some = Rows {
            q: some(&all.q)?,
            k: some(&all.k)?,
            v: some(&all.v)?,
            log_decay: some(&all.log_decay)?,
            strength: some(&all.strength)?,
        };
        let (y, after) = if count == 1 {
            one(&state, &some)?
        } else {
            several(&state, &some, count)?
        };
        outputs.push(y);
        state = after;
    }
    let y = match outputs.as_slice() {
        [y] => y.clone(),
        several => concatenate(several, 1)?,
    };
    let shape = [1, int(rows), int(params.value_heads), int(params.value_dim)];
    let y = cast(&y.swap_axes(0, 1)?.reshape(&shape)?, mixed.dtype())?;
    Ok((y, state.swap_axes(1, 2)?))
}

fn prepared(
    mixed: &Array,
    decay: &Array,
    strength: &Array,
    params: &DeltaParams<Array>,
) -> Result<Rows, Exception> {
    let &DeltaParams {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = params;
    let (rows, shared) = (size(mixed, 1), value_heads / key_heads);
    let mixed = wide(mixed)?;
    let keys = key_heads * key_dim;
    #[expect(clippy::cast_precision_loss, reason = "a head size")]
    let width = key_dim as f32;
    // q | k as one array of 2 · key_heads heads: x / √(Σx² + e) = rms_norm(x, e / n) / √n.
    let both =
        part(&mixed, 2, 0, 2 * keys)?.reshape(&[int(rows), int(2 * key_heads), int(key_dim)])?;
    let both = rms_norm(&both, None, LENGTH_EPS / width)?.swap_axes(0, 1)?;
    let unit = |first: usize, factor: f32| -> Result<Array, Exception> {
        let heads = part(&both, 0, first, key_heads)?.multiply(Array::from_f32(factor))?;
        if shared == 1 {
            return Ok(heads);
        }
        let own = [int(key_heads), 1, int(rows), int(key_dim)];
        let each = [int(key_heads), int(shared), int(rows), int(key_dim)];
        let all = [int(value_heads), int(rows), int(key_dim)];
        broadcast_to(heads.reshape(&own)?, &each)?.reshape(&all)
    };
    let per_head = |t: &Array| -> Result<Array, Exception> {
        t.reshape(&[int(rows), int(value_heads), 1])?
            .swap_axes(0, 1)
    };
    let bias = wide(&params.dt_bias)?;
    let step = logaddexp(wide(decay)?.add(&bias)?, Array::from_f32(0.0))?;
    let rate = wide(&params.a_log)?.exp()?.negative()?;
    Ok(Rows {
        q: unit(0, 1.0 / width)?,
        k: unit(key_heads, 1.0 / width.sqrt())?,
        v: part(&mixed, 2, 2 * keys, value_heads * value_dim)?
            .reshape(&[int(rows), int(value_heads), int(value_dim)])?
            .swap_axes(0, 1)?,
        log_decay: per_head(&maximum(step.multiply(rate)?, Array::from_f32(LEAST_LOG))?)?,
        strength: per_head(&sigmoid(wide(strength)?)?)?,
    })
}

/// One row: outputs `[heads, 1, value_dim]` and the state after it.
fn one(state: &Array, row: &Rows) -> Result<(Array, Array), Exception> {
    let state = state.multiply(row.log_decay.exp()?)?;
    let error = row
        .v
        .subtract(row.k.matmul(&state)?)?
        .multiply(&row.strength)?;
    let state = state.add(row.k.swap_axes(1, 2)?.multiply(error)?)?;
    Ok((row.q.matmul(&state)?, state))
}

/// Several rows: outputs `[heads, rows, value_dim]` and the state after the last.
fn several(state: &Array, rows: &Rows, count: usize) -> Result<(Array, Array), Exception> {
    let n = int(count);
    let log = rows.log_decay.cumsum(1, None, None)?;
    // e^{L_t − L_i} for i ≤ t. Above the diagonal the difference is positive: it is cut off first.
    let between = tril(log.subtract(log.swap_axes(1, 2)?)?, None)?.exp()?;
    let kept = tril(between, None)?;
    let decayed = log.exp()?;
    let k_t = rows.k.swap_axes(1, 2)?;
    // Predictions from the state before, and how corrections enter later predictions.
    let base = rows.k.matmul(state)?.multiply(&decayed)?;
    let coupling = tril(rows.k.matmul(&k_t)?.multiply(&kept)?, -1)?.multiply(&rows.strength)?;
    let wanted = rows.v.subtract(base)?.multiply(&rows.strength)?;
    // (I + N)⁻¹ = (I − N)(I + N²)(I + N⁴)…, because N to the power of its size is zero.
    let identity = eye::<f32>(n, None, None)?;
    let mut d = wanted.subtract(coupling.matmul(&wanted)?)?;
    let mut power = coupling.matmul(&coupling)?;
    let mut reach = 2;
    while reach < count {
        d = power.add(&identity)?.matmul(&d)?;
        reach *= 2;
        if reach < count {
            power = power.matmul(&power)?;
        }
    }
    let seen = rows.q.matmul(&k_t)?.multiply(&kept)?;
    let y = rows
        .q
        .matmul(state)?
        .multiply(&decayed)?
        .add(seen.matmul(&d)?)?;
    let last = part(&log, 1, count - 1, 1)?;
    let weights = last.subtract(&log)?.exp()?;
    let after = state
        .multiply(last.exp()?)?
        .add(k_t.matmul(d.multiply(weights)?)?)?;
    Ok((y, after))
}

/// Depthwise causal convolution and silu; see `Backend::short_conv`.
pub(crate) fn short_conv(window: &Array, rows: &Array, kernel: &Array) -> Result<Array> {
    let (taps, channels, count) = (size(kernel, 0), size(kernel, 1), size(rows, 1));
    for (what, t, expected) in [
        ("short convolution: rows", rows, [1, count, channels]),
        (
            "short convolution: window",
            window,
            [1, taps.saturating_sub(1), channels],
        ),
    ] {
        if sizes(t) != expected || taps == 0 || count == 0 {
            return Err(Error::shape(
                what,
                format!("{expected:?}"),
                format!("{:?}", t.shape()),
            ));
        }
    }
    let run = || -> Result<Array, Exception> {
        let all = if taps > 1 {
            concatenate(&[wide(window)?, wide(rows)?], 1)?
        } else {
            wide(rows)?
        };
        // Row t beside the rows that it sees: the same memory, read with a step of one row twice.
        let step = i64::from(int(channels));
        let shape = [1, int(count), int(taps), int(channels)];
        let seen = as_strided(&all, &shape[..], &[step, step, step, 1][..], 0)?;
        let sum = sum_axis(seen.multiply(wide(kernel)?)?, 2, false)?;
        cast(&silu(&sum)?, rows.dtype())
    };
    at("short_conv", run())
}

/// DFlash 2's dynamic convolution; see `Backend::dynamic_conv`.
pub(crate) fn dynamic_conv(y: &Array, base: &Array, dynamic: &Array) -> Result<Array> {
    let (rows, dim, taps, groups) = (size(y, 1), size(y, 2), size(base, 0), size(dynamic, 3));
    let fits = groups > 0
        && taps > 0
        && dim % groups == 0
        && sizes(base) == [taps, dim]
        && sizes(dynamic) == [1, rows, taps, groups];
    if !fits {
        let expected = format!("base [taps, {dim}], dynamic [1, {rows}, taps, a divisor of {dim}]");
        let found = format!("{:?} and {:?}", base.shape(), dynamic.shape());
        return Err(Error::shape("dynamic convolution", expected, found));
    }
    let width = dim / groups;
    let run = || -> Result<Array, Exception> {
        let x = wide(y)?.reshape(&[1, int(rows), int(groups), int(width)])?;
        let base = wide(base)?.reshape(&[int(taps), int(groups), int(width)])?;
        let dynamic = wide(dynamic)?;
        let mut sum: Option<Array> = None;
        for tap in 0..taps.min(rows) {
            let moving = part(&dynamic, 2, tap, 1)?.reshape(&[1, int(rows), int(groups), 1])?;
            let factor = moving.add(part(&base, 0, tap, 1)?)?;
            let shifted = if tap == 0 {
                x.clone()
            } else {
                let before = zeros_dtype(&[1, int(tap), int(groups), int(width)], Dtype::Float32)?;
                concatenate(&[before, part(&x, 1, 0, rows - tap)?], 1)?
            };
            let term = factor.multiply(shifted)?;
            sum = Some(match sum {
                Some(sum) => sum.add(term)?,
                None => term,
            });
        }
        let sum = sum.map_or_else(|| zeros_dtype(&[1, 0, int(dim)], Dtype::Float32), Ok)?;
        cast(&sum.reshape(&[1, int(rows), int(dim)])?, y.dtype())
    };
    at("dynamic_conv", run())
}
