//! Rotary positions and attention.

use super::tensor::{RefTensor, dot};
use crate::Result;
use crate::backend::host::{HostKv, HostRope};
use crate::backend::{Block, BlockRule, Visibility};

/// Rotates the first features of heads `[1, heads, rows, head_dim]`.
pub(super) fn rotate(x: &RefTensor, angles: &HostRope) -> Result<RefTensor> {
    let half = angles.dims() / 2;
    let &[1, heads, rows, head_dim] = x.shape() else {
        return Err(x.misfit("rope", "[1, heads, rows, head_dim]"));
    };
    if rows != angles.rows() || head_dim < 2 * half {
        return Err(x.misfit(
            "rope",
            format!("[1, heads, {}, at least {}]", angles.rows(), 2 * half),
        ));
    }
    let mut data = x.data().to_vec();
    for head in 0..heads {
        for row in 0..rows {
            let features = &mut data[(head * rows + row) * head_dim..][..head_dim];
            for i in 0..half {
                let (cos, sin) = (angles.cos()[row * half + i], angles.sin()[row * half + i]);
                let (a, b) = (features[i], features[i + half]);
                features[i] = a * cos - b * sin;
                features[i + half] = a * sin + b * cos;
            }
        }
    }
    RefTensor::new("rope", data, x.shape())
}

/// Per row and head: scores of the visible keys in order, softmax in two passes, the weighted sum of their values.
/// A row that sees nothing is 0.
pub(super) fn attention(
    q: &RefTensor,
    kv: &HostKv,
    block: Option<Block<'_, RefTensor>>,
    scale: f32,
    visible: &Visibility,
) -> Result<RefTensor> {
    let shape = kv.shape();
    let &[1, heads, rows, head_dim] = q.shape() else {
        return Err(q.misfit("attention: queries", "[1, heads, rows, head_dim]"));
    };
    if head_dim != shape.head_dim || heads % shape.heads != 0 {
        let expected = format!(
            "[1, a multiple of {}, rows, {}]",
            shape.heads, shape.head_dim
        );
        return Err(q.misfit("attention: queries", expected));
    }
    if let Some(block) = &block {
        block
            .k
            .expect("attention: block keys", &[1, shape.heads, rows, head_dim])?;
        block
            .v
            .expect("attention: block values", &[1, shape.heads, rows, head_dim])?;
    }
    let mut data = vec![0.0f32; heads * rows * head_dim];
    let mut seen: Vec<(&[f32], &[f32])> = Vec::new();
    for head in 0..heads {
        let kv_head = head / (heads / shape.heads);
        for row in 0..rows {
            seen.clear();
            seen.extend(
                visible
                    .range(row, kv.rows())
                    .map(|key| (kv.key(key, kv_head), kv.value(key, kv_head))),
            );
            if let Some(block) = &block {
                let last = match block.rule {
                    BlockRule::Causal => row + 1,
                    BlockRule::Bidirectional => rows,
                };
                let of = |t: &'_ RefTensor, key: usize| (kv_head * rows + key) * t.shape()[3];
                seen.extend((0..last).map(|key| {
                    let start = of(block.k, key);
                    (
                        &block.k.data()[start..start + head_dim],
                        &block.v.data()[start..start + head_dim],
                    )
                }));
            }
            let at = (head * rows + row) * head_dim;
            let query = &q.data()[at..at + head_dim];
            let scores: Vec<f32> = seen.iter().map(|(k, _)| dot(query, k) * scale).collect();
            let best = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|s| (s - best).exp()).collect();
            let total: f32 = weights.iter().sum();
            let out = &mut data[at..at + head_dim];
            for (weight, (_, value)) in weights.iter().zip(&seen) {
                out.iter_mut()
                    .zip(*value)
                    .for_each(|(o, v)| *o += weight * v);
            }
            if !seen.is_empty() {
                out.iter_mut().for_each(|o| *o /= total);
            }
        }
    }
    RefTensor::new("attention", data, q.shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::backend::KvShape;
    use crate::backend::reference::Reference;
    use crate::backend::{Backend, RopeSpec};

    fn tensor(numbers: Vec<f32>, shape: &[usize]) -> RefTensor {
        RefTensor::new("given", numbers, shape).expect("as many numbers")
    }

    /// `count` numbers without a pattern.
    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        (0..count)
            .scan(seed, |s, _| {
                *s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                Some(f32::from(u16::try_from(*s >> 16).expect("16 bits")) / 32_768.0 - 1.0)
            })
            .collect()
    }

    #[test]
    fn pairs_turn_by_position_over_period() {
        let spec = RopeSpec {
            dims: 4,
            periods: vec![1.0, f64::INFINITY],
            amplitude: 2.0,
        };
        let rope = HostRope::new(&spec, 3, 2).expect("half as many periods");
        let x = tensor(
            vec![1.0, 1.0, 0.0, 0.0, 7.0, 0.0, 1.0, 5.0, 1.0, 7.0],
            &[1, 1, 2, 5],
        );
        let turned = rotate(&x, &rope).expect("fits");
        let (cos, sin) = (|a: f64| 2.0 * a.cos() as f32, |a: f64| 2.0 * a.sin() as f32);
        // Feature 1 is paired with feature 3 and never turns; feature 4 is not rotated.
        assert_eq!(
            turned.data(),
            [
                cos(3.0),
                2.0,
                sin(3.0),
                0.0,
                7.0,
                -5.0 * sin(4.0),
                2.0,
                5.0 * cos(4.0),
                2.0,
                7.0
            ]
        );
    }

    #[test]
    fn angles_are_exact_at_large_positions() {
        let spec = RopeSpec {
            dims: 2,
            periods: vec![3.0],
            amplitude: 1.0,
        };
        let rope = HostRope::new(&spec, 1_000_003, 1).expect("half as many periods");
        // 1000003 / 3 radians; a float32 angle would be off by up to 0.016.
        assert!((f64::from(rope.cos()[0]) - (1_000_003.0f64 / 3.0).cos()).abs() < 1e-7);
        assert!(
            HostRope::new(
                &RopeSpec {
                    dims: 4,
                    ..spec.clone()
                },
                0,
                1
            )
            .is_err()
        );
        assert!(rotate(&tensor(vec![0.0; 4], &[1, 1, 2, 2]), &rope).is_err());
        assert!(rotate(&tensor(vec![0.0; 1], &[1, 1, 1, 1]), &rope).is_err());
    }

    /// Query, key and value rows with the definition in float64, visibility by positions.
    #[test]
    fn equals_the_definition_by_positions() {
        const HEADS: usize = 4;
        let (rows, keys, dim, first_key) = (3, 9, 5, 11);
        let (k, v) = (numbers(1, 2 * keys * dim), numbers(2, 2 * keys * dim));
        let (bk, bv) = (numbers(3, 2 * rows * dim), numbers(4, 2 * rows * dim));
        let q = numbers(5, HEADS * rows * dim);
        let mut kv = HostKv::new(KvShape {
            heads: 2,
            head_dim: dim,
        })
        .expect("sizes above 0");
        Reference::new()
            .kv_append(
                &mut kv,
                &tensor(k.clone(), &[1, 2, keys, dim]),
                &tensor(v.clone(), &[1, 2, keys, dim]),
            )
            .expect("fits");
        let block = (
            tensor(bk.clone(), &[1, 2, rows, dim]),
            tensor(bv.clone(), &[1, 2, rows, dim]),
        );
        for rule in [
            None,
            Some(BlockRule::Causal),
            Some(BlockRule::Bidirectional),
        ] {
            for window in [None, Some(1), Some(4), Some(100)] {
                let first_query = if rule.is_some() {
                    first_key + keys
                } else {
                    first_key + keys - rows
                };
                let visible = Visibility {
                    first_key,
                    first_query,
                    window,
                };
                let beside = rule.map(|rule| Block {
                    k: &block.0,
                    v: &block.1,
                    rule,
                });
                let found = attention(
                    &tensor(q.clone(), &[1, HEADS, rows, dim]),
                    &kv,
                    beside,
                    0.4,
                    &visible,
                )
                .expect("fits");
                for head in 0..HEADS {
                    for row in 0..rows {
                        let position = first_query + row;
                        let cached = (0..keys).filter(|key| {
                            let key = first_key + key;
                            key <= position && window.is_none_or(|w| position < key + w)
                        });
                        let own = (0..rows).filter(|key| match rule {
                            None => false,
                            Some(BlockRule::Causal) => *key <= row,
                            Some(BlockRule::Bidirectional) => true,
                        });
                        let at = |all: &[f32], of: usize, key: usize, i: usize| {
                            f64::from(all[(head / 2 * of + key) * dim + i])
                        };
                        let pairs: Vec<(Vec<f64>, Vec<f64>)> = cached
                            .map(|key| {
                                (
                                    (0..dim).map(|i| at(&k, keys, key, i)).collect(),
                                    (0..dim).map(|i| at(&v, keys, key, i)).collect(),
                                )
                            })
                            .chain(own.map(|key| {
                                (
                                    (0..dim).map(|i| at(&bk, rows, key, i)).collect(),
                                    (0..dim).map(|i| at(&bv, rows, key, i)).collect(),
                                )
                            }))
                            .collect();
                        let query = &q[(head * rows + row) * dim..][..dim];
                        let weights: Vec<f64> = pairs
                            .iter()
                            .map(|(k, _)| {
                                (0.4 * query
                                    .iter()
                                    .zip(k)
                                    .map(|(q, k)| f64::from(*q) * k)
                                    .sum::<f64>())
                                .exp()
                            })
                            .collect();
                        let total: f64 = weights.iter().sum();
                        for i in 0..dim {
                            let expected = weights
                                .iter()
                                .zip(&pairs)
                                .map(|(w, (_, v))| w / total * v[i])
                                .sum::<f64>();
                            let found = f64::from(found.data()[(head * rows + row) * dim + i]);
                            assert!(
                                (found - expected).abs() < 1e-6,
                                "{rule:?} {window:?} head {head} row {row}: {found} {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_that_sees_nothing_is_zero_and_misfits_are_errors() {
        let kv = HostKv::new(KvShape {
            heads: 2,
            head_dim: 3,
        })
        .expect("sizes above 0");
        let visible = Visibility {
            first_key: 0,
            first_query: 0,
            window: None,
        };
        let run = |shape: &[usize]| {
            attention(
                &tensor(vec![1.0; shape.iter().product()], shape),
                &kv,
                None,
                1.0,
                &visible,
            )
        };
        assert_eq!(run(&[1, 2, 1, 3]).expect("fits").data(), [0.0; 6]);
        for shape in [&[1, 3, 1, 3][..], &[1, 2, 1, 4], &[2, 1, 3], &[2, 2, 1, 3]] {
            assert!(matches!(run(shape), Err(Error::Shape { .. })), "{shape:?}");
        }
    }
}
