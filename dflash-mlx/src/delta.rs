//! The gated delta rule of recurrent layers.

use dflash_core::backend::DeltaParams;
use dflash_core::{Error, Result};
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::fast::rms_norm;
use mlx_rs::ops::{addmm, broadcast_to, concatenate, logaddexp, maximum, sigmoid};

use crate::array::{at, cast, int, part, size, sizes, wide};

/// Added to the squared length of q and k.
const LENGTH_EPS: f32 = 1e-6;
/// Rows that are solved together. Their coupling is a triangular system of this size, whose cost
/// grows with its square; fewer rows at a time mean more operations per row.
const TOGETHER: usize = 16;
/// Where the logarithm of a decay is cut off: its exponential is zero there, and sums of larger
/// numbers would lose the small differences that count.
const LEAST_LOG: f32 = -100.0;

/// The gated delta rule (Gated Delta Networks, arXiv 2412.06464, equation 10) for several rows at once.
///
/// With decays g, L_t = Σ_{i≤t} ln g_i, and corrections d_t = β_t (v_t − prediction), the state after
/// row t is S_t = e^{L_t} S_0 + Σ_{i≤t} e^{L_t − L_i} d_i k_iᵀ. A prediction reads earlier corrections
/// only, so all d solve one unit lower triangular system, whose inverse is a short product of powers.
/// That makes a block a dozen products, where a scan takes half a dozen operations for each row.
/// [`check`] saw the shapes.
pub(crate) fn gated_delta(
    state: &Array,
    mixed: &Array,
    decay: &Array,
    strength: &Array,
    params: &DeltaParams<Array>,
    offsets: &mut Vec<Offsets>,
) -> Result<(Array, Array)> {
    at(
        "gated_delta",
        scanned(state, mixed, decay, strength, params, offsets),
    )
}

/// Refuses arguments whose shapes do not belong together.
pub(crate) fn check(
    state: &Array,
    mixed: &Array,
    decay: &Array,
    strength: &Array,
    params: &DeltaParams<Array>,
) -> Result<()> {
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
        ("gated delta: A", &params.a_log, vec![value_heads]),
        ("gated delta: dt bias", &params.dt_bias, vec![value_heads]),
    ] {
        if sizes(t) != expected {
            return Err(Error::shape(
                what,
                format!("{expected:?}"),
                format!("{:?}", t.shape()),
            ));
        }
    }
    Ok(())
}

fn scanned(
    state: &Array,
    mixed: &Array,
    decay: &Array,
    strength: &Array,
    params: &DeltaParams<Array>,
    offsets: &mut Vec<Offsets>,
) -> Result<(Array, Array), Exception> {
    let all = prepared(mixed, decay, strength, params)?;
    let rows = size(mixed, 1);
    // As `[key_dim, value_dim]`, so that rows of keys multiply it from the left.
    let mut state = wide(state)?.swap_axes(1, 2)?;
    let mut outputs = Vec::new();
    for start in (0..rows).step_by(TOGETHER) {
        let count = TOGETHER.min(rows - start);
        let some = Rows {
            keys: part(&all.keys, 2, start, count)?,
            v: part(&all.v, 1, start, count)?,
            log_decay: part(&all.log_decay, 1, start, count)?,
            strength: part(&all.strength, 1, start, count)?,
        };
        let (y, after) = if count == 1 {
            one(&state, &some, params)?
        } else {
            let at = match offsets.iter().position(|o| o.fits(count, params.key_dim)) {
                Some(at) => at,
                None => {
                    offsets.push(Offsets::new(count, params.key_dim));
                    offsets.len() - 1
                }
            };
            several(&state, &some, params, &offsets[at])?
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

/// Rows of one call, per value head, float32.
struct Rows {
    /// `[heads, 2, rows, key_dim]`: q, then k, each √key_dim long. What is left of their factors is
    /// [`Offsets`]' part.
    keys: Array,
    /// `[heads, rows, value_dim]`.
    v: Array,
    /// ln of the decay, `[heads, rows, 1]`.
    log_decay: Array,
    /// `[heads, rows, 1]`.
    strength: Array,
}

/// Constants added to logarithms of decays before their exponentials are taken, so that lengths,
/// scales and the triangular shape of what rows see of each other cost no operation of their own.
///
/// q and k come √key_dim long where 1 / √key_dim and 1 are wanted.
#[derive(Debug)]
pub(crate) struct Offsets {
    rows: usize,
    key_dim: usize,
    /// `[2, rows, rows]`: q rows see keys up to their own, k rows those before; −∞ elsewhere.
    between: Array,
    /// `[2, 1, 1]`: q and k rows on the state before.
    before: Array,
    /// Of one key.
    key: Array,
}

impl Offsets {
    fn new(rows: usize, key_dim: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a head size")]
        let half = 0.5 * (key_dim as f32).ln();
        let between: Vec<f32> = (0..2 * rows * rows)
            .map(|i| match (i / (rows * rows), i / rows % rows, i % rows) {
                (0, row, key) if key <= row => -3.0 * half,
                (1, row, key) if key < row => -2.0 * half,
                _ => f32::NEG_INFINITY,
            })
            .collect();
        Self {
            rows,
            key_dim,
            between: Array::from_slice(&between, &[2, int(rows), int(rows)]),
            before: Array::from_slice(&[-2.0 * half, -half], &[2, 1, 1]),
            key: Array::from_f32(-half),
        }
    }

    const fn fits(&self, rows: usize, key_dim: usize) -> bool {
        self.rows == rows && self.key_dim == key_dim
    }
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
    let (rows, shared) = (int(size(mixed, 1)), int(value_heads / key_heads));
    let (heads, own, dim) = (int(value_heads), int(key_heads), int(key_dim));
    let mixed = wide(mixed)?;
    let width = 2 * key_heads * key_dim;
    #[expect(clippy::cast_precision_loss, reason = "a head size")]
    let eps = LENGTH_EPS / key_dim as f32;
    // x / √(Σx² + e) = rms_norm(x, e / n) / √n.
    let keys = part(&mixed, 2, 0, width)?.reshape(&[rows, 2, own, dim])?;
    let keys = rms_norm(&keys, None, eps)?.transpose_axes(&[2, 1, 0, 3])?;
    let keys = if shared == 1 {
        keys
    } else {
        let each = [own, shared, 2, rows, dim];
        broadcast_to(keys.expand_dims(1)?, &each)?.reshape(&[heads, 2, rows, dim])?
    };
    let per_head = |t: &Array| t.reshape(&[rows, heads, 1])?.swap_axes(0, 1);
    let step = logaddexp(
        wide(decay)?.add(wide(&params.dt_bias)?)?,
        Array::from_f32(0.0),
    )?;
    let rate = wide(&params.a_log)?.exp()?.negative()?;
    Ok(Rows {
        keys,
        v: part(&mixed, 2, width, value_heads * value_dim)?
            .reshape(&[rows, heads, int(value_dim)])?
            .swap_axes(0, 1)?,
        log_decay: per_head(&maximum(step.multiply(rate)?, Array::from_f32(LEAST_LOG))?)?,
        strength: per_head(&sigmoid(wide(strength)?)?)?,
    })
}

/// One row: outputs `[heads, 1, value_dim]` and the state after it.
fn one(
    state: &Array,
    row: &Rows,
    params: &DeltaParams<Array>,
) -> Result<(Array, Array), Exception> {
    #[expect(clippy::cast_precision_loss, reason = "a head size")]
    let width = params.key_dim as f32;
    let shape = [int(params.value_heads), 1, int(params.key_dim)];
    let head = |which: usize, factor: f32| {
        part(&row.keys, 1, which, 1)?
            .reshape(&shape)?
            .multiply(Array::from_f32(factor))
    };
    let (q, k) = (head(0, 1.0 / width)?, head(1, 1.0 / width.sqrt())?);
    let state = state.multiply(row.log_decay.exp()?)?;
    let error = row.v.subtract(k.matmul(&state)?)?.multiply(&row.strength)?;
    let state = state.add(k.swap_axes(1, 2)?.multiply(error)?)?;
    Ok((q.matmul(&state)?, state))
}

/// Several rows: outputs `[heads, rows, value_dim]` and the state after the last.
fn several(
    state: &Array,
    rows: &Rows,
    params: &DeltaParams<Array>,
    offsets: &Offsets,
) -> Result<(Array, Array), Exception> {
    let count = offsets.rows;
    let (n, heads) = (int(count), int(params.value_heads));
    let keys = rows.keys.reshape(&[heads, 2 * n, int(params.key_dim)])?;
    let k_t = part(&keys, 1, count, count)?.swap_axes(1, 2)?;
    let log = rows.log_decay.cumsum(1, None, None)?;
    let own = log.expand_dims(1)?;
    // The decay between two rows, e^{L_t − L_i}, and from the state before, e^{L_t}.
    let between = own
        .subtract(own.swap_axes(2, 3)?)?
        .add(&offsets.between)?
        .exp()?
        .reshape(&[heads, 2 * n, n])?;
    let decayed = own
        .add(&offsets.before)?
        .exp()?
        .reshape(&[heads, 2 * n, 1])?;
    let seen = keys.matmul(&k_t)?.multiply(between)?;
    let base = keys.matmul(state)?.multiply(decayed)?;
    let half = |t: &Array, which: usize| part(t, 1, which * count, count);
    let wanted = rows.v.subtract(half(&base, 1)?)?.multiply(&rows.strength)?;
    let mut power = half(&seen, 1)?.multiply(&rows.strength)?;
    // (I + N)⁻¹ = (I − N)(I + N²)(I + N⁴)…, because N to the power of its size is zero.
    let mut d = addmm(&wanted, &power, &wanted, -1.0, 1.0)?;
    let mut reach = 2;
    while reach < count {
        power = power.matmul(&power)?;
        d = addmm(&d, &power, &d, 1.0, 1.0)?;
        reach *= 2;
    }
    let y = addmm(half(&base, 0)?, half(&seen, 0)?, &d, 1.0, 1.0)?;
    let last = part(&log, 1, count - 1, 1)?;
    let weights = last.subtract(&log)?.add(&offsets.key)?.exp()?;
    let after = addmm(
        state.multiply(last.exp()?)?,
        &k_t,
        d.multiply(weights)?,
        1.0,
        1.0,
    )?;
    Ok((y, after))
}
