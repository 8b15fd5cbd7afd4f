//! Rotary positions and attention.

use std::rc::Rc;

use super::kv::RefKv;
use super::tensor::{RefTensor, dot};
use crate::backend::{Block, BlockRule, RopeSpec, Visibility};
use crate::{Error, Result};

/// Cosines and sines of consecutive positions, `[rows, dims / 2]` each.
#[derive(Debug, Clone)]
pub struct RefRope {
    cos: Rc<[f32]>,
    sin: Rc<[f32]>,
    rows: usize,
}

impl RefRope {
    pub(super) fn new(spec: &RopeSpec, first: usize, rows: usize) -> Result<Self> {
        if spec.dims % 2 != 0 || spec.periods.len() != spec.dims / 2 {
            return Err(Error::shape(
                "rope",
                format!("half as many periods as {} rotated features", spec.dims),
                spec.periods.len(),
            ));
        }
        // Angles reach a position's full size, which float32 could not take a cosine of.
        #[expect(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
        let angles = (first..first + rows)
            .flat_map(|p| spec.periods.iter().map(move |period| p as f64 / period));
        #[expect(clippy::cast_possible_truncation, reason = "rounded once, here")]
        let narrow = |x: f64| x as f32 * spec.amplitude;
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles.map(|a| (narrow(a.cos()), narrow(a.sin()))).unzip();
        Ok(Self {
            cos: cos.into(),
            sin: sin.into(),
            rows,
        })
    }

    /// Rotates the first features of heads `[1, heads, rows, head_dim]`.
    pub(super) fn rotate(&self, x: &RefTensor) -> Result<RefTensor> {
        let half = self.cos.len().checked_div(self.rows).unwrap_or(0);
        let &[1, heads, rows, head_dim] = x.shape() else {
            return Err(x.misfit("rope", "[1, heads, rows, head_dim]"));
        };
        if rows != self.rows || head_dim < 2 * half {
            return Err(x.misfit(
                "rope",
                format!("[1, heads, {}, at least {}]", self.rows, 2 * half),
            ));
        }
        let mut data = x.data().to_vec();
        for head in 0..heads {
            for row in 0..rows {
                let features = &mut data[(head * rows + row) * head_dim..][..head_dim];
                for i in 0..half {
                    let (cos, sin) = (self.cos[row * half + i], self.sin[row * half + i]);
                    let (a, b) = (features[i], features[i + half]);
                    features[i] = a * cos - b * sin;
                    features[i + half] = a * sin + b * cos;
                }
            }
        }
        RefTensor::new("rope", data, x.shape())
    }
}

/// Per row and head: scores of the visible keys in order, softmax in two passes, the weighted sum of their values.
/// A row that sees nothing is 0.
pub(super) fn attention(
    q: &RefTensor,
    kv: &RefKv,
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
