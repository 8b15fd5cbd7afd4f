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

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(numbers: &[f32], shape: &[usize]) -> RefTensor {
        RefTensor::new("given", numbers.to_vec(), shape).expect("as many numbers")
    }

    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let next = |s: &mut u32| {
            *s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(*s >> 16).expect("16 bits")) / 16_384.0 - 2.0
        };
        (0..count).scan(seed, |s, _| Some(next(s))).collect()
    }

    struct Inputs {
        state: RefTensor,
        mixed: RefTensor,
        decay: RefTensor,
        strength: RefTensor,
        params: DeltaParams<RefTensor>,
    }

    /// Two key heads of 20, six value heads of 3.
    fn inputs(rows: usize) -> Inputs {
        let params = DeltaParams {
            key_heads: 2,
            value_heads: 6,
            key_dim: 20,
            value_dim: 3,
            taps: 4,
            a_log: tensor(&numbers(1, 6), &[6]),
            dt_bias: tensor(&numbers(2, 6), &[6]),
        };
        Inputs {
            state: tensor(&numbers(3, 6 * 3 * 20), &[6, 3, 20]),
            mixed: tensor(&numbers(4, rows * 98), &[1, rows, 98]),
            decay: tensor(&numbers(5, rows * 6), &[1, rows, 6]),
            strength: tensor(&numbers(6, rows * 6), &[1, rows, 6]),
            params,
        }
    }

    #[test]
    fn equals_the_definition_in_float64() {
        let Inputs {
            state,
            mixed,
            decay,
            strength,
            params,
        } = inputs(4);
        let (y, last) = gated_delta(&state, &mixed, &decay, &strength, &params).expect("fits");
        let wide = |x: &f32| f64::from(*x);
        let mut s: Vec<f64> = state.data().iter().map(wide).collect();
        for t in 0..4 {
            let row: Vec<f64> = mixed.data()[t * 98..][..98].iter().map(wide).collect();
            for h in 0..6 {
                let head = |start: usize| -> Vec<f64> {
                    let x = &row[start + h / 3 * 20..][..20];
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / length).collect()
                };
                let (q, k) = (head(0), head(40));
                let v = &row[80 + h * 3..][..3];
                let a = f64::from(decay.data()[t * 6 + h]) + f64::from(params.dt_bias.data()[h]);
                let g = (-f64::from(params.a_log.data()[h]).exp() * (1.0 + a.exp()).ln()).exp();
                let beta = 1.0 / (1.0 + (-f64::from(strength.data()[t * 6 + h])).exp());
                for (i, v) in v.iter().enumerate() {
                    let cells = &mut s[(h * 3 + i) * 20..][..20];
                    cells.iter_mut().for_each(|s| *s *= g);
                    let delta = beta * (v - cells.iter().zip(&k).map(|(s, k)| s * k).sum::<f64>());
                    cells.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
                    let expected =
                        cells.iter().zip(&q).map(|(s, q)| s * q).sum::<f64>() / 20f64.sqrt();
                    let found = f64::from(y.data()[(t * 6 + h) * 3 + i]);
                    assert!(
                        (found - expected).abs() < 1e-5,
                        "row {t} head {h} feature {i}: {found} {expected}"
                    );
                }
            }
        }
        for (found, expected) in last.data().iter().zip(&s) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-5,
                "state {found} {expected}"
            );
        }
    }

    #[test]
    fn two_calls_give_the_bits_of_one() {
        let Inputs {
            state,
            mixed,
            decay,
            strength,
            params,
        } = inputs(7);
        let run = |state: &RefTensor, first, rows| {
            let part = |t: &RefTensor| t.slice(1, first, rows).expect("inside");
            gated_delta(
                state,
                &part(&mixed),
                &part(&decay),
                &part(&strength),
                &params,
            )
            .expect("fits")
        };
        let (whole, last) = run(&state, 0, 7);
        for cut in 1..7 {
            let (first, middle) = run(&state, 0, cut);
            let (rest, end) = run(&middle, cut, 7 - cut);
            assert_eq!(
                (RefTensor::concat(&[&first, &rest], 1).expect("fit"), &end),
                (whole.clone(), &last),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn misfits_are_errors() {
        let Inputs {
            state,
            mixed,
            decay,
            strength,
            params,
        } = inputs(2);
        let run = |params: &DeltaParams<RefTensor>, rows| {
            gated_delta(
                &state,
                &mixed.slice(1, 0, rows).expect("inside"),
                &decay,
                &strength,
                params,
            )
        };
        assert!(run(&params, 2).is_ok());
        assert!(run(&params, 1).is_err(), "one row, but decay of two");
        assert!(run(&params, 0).is_err(), "no rows");
        for wrong in [
            DeltaParams {
                key_heads: 0,
                ..params.clone()
            },
            DeltaParams {
                key_heads: 4,
                ..params.clone()
            },
            DeltaParams {
                key_dim: 0,
                ..params.clone()
            },
            DeltaParams {
                value_dim: 4,
                ..params.clone()
            },
            DeltaParams {
                a_log: tensor(&[0.0], &[1]),
                ..params.clone()
            },
        ] {
            assert!(
                matches!(run(&wrong, 2), Err(Error::Shape { .. })),
                "{wrong:?}"
            );
        }
    }
}
