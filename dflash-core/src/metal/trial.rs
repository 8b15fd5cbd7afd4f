//! A trial of the kernels on the device that is to run them.

use super::{Family, LONG_CACHE, Switches};
use crate::backend::{Backend, DeltaParams, KvShape, Visibility};
use crate::checkpoint::{Bytes, StoredTensor, StoredType, WeightSource};
use crate::{DType, Result};

/// Rows of the trial's blocks.
const ROWS: usize = 5;

/// Runs each family that is on against what it replaces, on small inputs; a family that fails or
/// disagrees is switched off, and a note says so.
///
/// `with` gives the backend with certain families on. Libraries compile kernels when their results are
/// first needed, so this is also where one that does not compile on the device is met, not in a request.
pub fn tried<B: Backend>(
    wanted: Switches,
    with: impl Fn(Switches) -> B,
) -> (Switches, Vec<String>) {
    let mut kept = wanted;
    let mut notes = Vec::new();
    let without = with(Switches::NONE);
    for family in Family::ALL.into_iter().filter(|f| wanted.is_on(*f)) {
        let reason = match outputs(&with(wanted.only(family)), family) {
            Err(error) => Some(error.to_string()),
            Ok(found) => match outputs(&without, family) {
                Err(error) => Some(format!("nothing to compare it with: {error}")),
                Ok(expected) => disagreement(&found, &expected, without.dtype()),
            },
        };
        if let Some(reason) = reason {
            kept.turn_off(family);
            notes.push(format!(
                "the Metal kernel `{family}` is not used on this device ({reason})"
            ));
        }
    }
    (kept, notes)
}

/// Where two results differ by more than rounding.
fn disagreement(found: &[f32], expected: &[f32], dtype: DType) -> Option<String> {
    let part = match dtype {
        DType::F32 => 1e-3,
        DType::Bf16 | DType::F16 => 2e-2,
    };
    let scale = expected.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    if found.len() != expected.len() {
        return Some(format!("{} numbers, not {}", found.len(), expected.len()));
    }
    let mut pairs = found.iter().zip(expected);
    // A NaN is no number within the bounds.
    let (found, expected) = pairs.find(|(f, e)| {
        let near = (*f - *e).abs() <= part * scale;
        !near
    })?;
    Some(format!("it gives {found} where {expected} is expected"))
}

/// What a family computes, in one list.
fn outputs<B: Backend>(b: &B, family: Family) -> Result<Vec<f32>> {
    let mut numbers = Numbers(7);
    match family {
        Family::GatedDelta => delta(b, &mut numbers),
        Family::AffineRows => product(b, &mut numbers),
        Family::Attention => attention(b, &mut numbers),
    }
}

fn delta<B: Backend>(b: &B, numbers: &mut Numbers) -> Result<Vec<f32>> {
    let (key_heads, value_heads, key_dim, value_dim) = (1, 2, 128, 128);
    let params = DeltaParams {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        taps: 4,
        a_log: numbers.tensor(b, &[value_heads], DType::F32)?,
        dt_bias: numbers.tensor(b, &[value_heads], DType::F32)?,
    };
    let state = numbers.tensor(b, &[value_heads, value_dim, key_dim], DType::F32)?;
    let mixed = numbers.tensor(b, &[1, ROWS, params.channels()], b.dtype())?;
    let decay = numbers.tensor(b, &[1, ROWS, value_heads], b.dtype())?;
    let strength = numbers.tensor(b, &[1, ROWS, value_heads], b.dtype())?;
    let (y, after) = b.gated_delta(&state, &mixed, &decay, &strength, &params)?;
    let replayed = b.gated_delta_state(&state, &mixed, &decay, &strength, &params)?;
    let mut all = Vec::new();
    for t in [&y, &after, &replayed] {
        all.extend(b.read(t)?);
    }
    Ok(all)
}

fn product<B: Backend>(b: &B, numbers: &mut Numbers) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for (bits, group) in [(4, 64), (8, 32)] {
        let (inputs, outputs) = (256, 24);
        let words = inputs * usize::from(bits) / 32;
        let stored = |dtype, shape: [usize; 2], bytes: Vec<u8>| StoredTensor {
            name: "trial".into(),
            dtype,
            shape: shape.to_vec(),
            bytes: Bytes::copied(&bytes),
        };
        let mut factors = || {
            let list = numbers.list(outputs * inputs / group);
            let bytes = list.iter().flat_map(|x| x.to_le_bytes()).collect();
            stored(StoredType::F32, [outputs, inputs / group], bytes)
        };
        let (scales, biases) = (factors(), factors());
        let codes = (0..outputs * words * 4).map(|i| i.to_le_bytes()[0].wrapping_mul(167));
        let weight = b.weight(WeightSource::Affine {
            codes: stored(StoredType::U32, [outputs, words], codes.collect()),
            scales,
            biases,
            bits,
            group,
            out: outputs,
            inp: inputs,
        })?;
        let x = numbers.tensor(b, &[1, ROWS, inputs], b.dtype())?;
        all.extend(b.read(&b.linear(&weight, &x, None)?)?);
    }
    Ok(all)
}

fn attention<B: Backend>(b: &B, numbers: &mut Numbers) -> Result<Vec<f32>> {
    let shape = KvShape {
        heads: 2,
        head_dim: 128,
    };
    let keys = LONG_CACHE + 77;
    let mut kv = b.kv_new(shape)?;
    let rows = [1, shape.heads, keys, shape.head_dim];
    let (k, v) = (
        numbers.tensor(b, &rows, b.dtype())?,
        numbers.tensor(b, &rows, b.dtype())?,
    );
    b.kv_append(&mut kv, &k, &v)?;
    let q = numbers.tensor(b, &[1, 4, ROWS, shape.head_dim], b.dtype())?;
    let visible = Visibility {
        first_key: 0,
        first_query: keys - ROWS,
        window: None,
    };
    b.read(&b.attention(&q, &kv, None, 0.5, &visible)?)
}

/// Numbers between -1 and 1, the same at every trial.
struct Numbers(u32);

impl Numbers {
    fn list(&mut self, count: usize) -> Vec<f32> {
        let next = |_| {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(self.0.to_le_bytes()[3]) / 128.0 - 1.0
        };
        (0..count).map(next).collect()
    }

    fn tensor<B: Backend>(&mut self, b: &B, shape: &[usize], dtype: DType) -> Result<B::Tensor> {
        b.upload(&self.list(shape.iter().product()), shape, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::Reference;

    #[test]
    fn kernels_that_agree_stay_on() {
        let (kept, notes) = tried(Switches::default(), |_| Reference::new());
        assert_eq!((kept, notes), (Switches::default(), Vec::new()));
    }

    #[test]
    fn results_that_differ_are_described() {
        let far = disagreement(&[1.0, 2.5], &[1.0, 2.0], DType::Bf16).expect("far apart");
        assert!(far.contains("2.5") && far.contains('2'), "{far}");
        assert!(disagreement(&[f32::NAN], &[1.0], DType::F32).is_some());
        assert!(disagreement(&[1.0], &[1.0, 1.0], DType::F32).is_some());
        assert!(disagreement(&[1.0, 2.01], &[1.0, 2.0], DType::Bf16).is_none());
    }
}
