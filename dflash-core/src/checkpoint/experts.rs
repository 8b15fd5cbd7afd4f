//! The experts of a sparse layer, in the three layouts that files use.

use super::claims::Claims;
use super::tensor::StoredTensor;
use super::weight::WeightSource;
use crate::Result;
use crate::config::MoeConfig;

/// The routed experts of one layer: entry `e` of each list belongs to expert `e`.
///
/// Whatever the layout, these are views into the file. With H the hidden size and I the width of
/// one expert:
/// * one tensor per expert: `experts.{e}.gate_proj`, `up_proj` `[I, H]`, `down_proj` `[H, I]`;
/// * stacked: `switch_mlp.gate_proj`, `up_proj` `[E, I, H]`, `down_proj` `[E, H, I]`;
/// * fused: `experts.gate_up_proj` `[E, 2I, H]`, gate first, and `experts.down_proj` `[E, H, I]`.
#[derive(Debug, Clone)]
pub struct Experts {
    /// `[I, H]` each.
    pub gate: Vec<WeightSource>,
    /// `[I, H]` each.
    pub up: Vec<WeightSource>,
    /// `[H, I]` each.
    pub down: Vec<WeightSource>,
}

impl Claims {
    /// Claims the experts of the layer whose MLP is `mlp` (`layers.3.mlp`).
    ///
    /// # Errors
    /// A tensor is missing or has the wrong shape or type.
    pub fn experts(&mut self, mlp: &str, hidden_size: usize, moe: &MoeConfig) -> Result<Experts> {
        let (count, width) = (moe.experts, moe.intermediate_size);
        if self.has(&format!("{mlp}.switch_mlp.gate_proj.weight")) {
            let mut stack = |part: &str, out, inp| {
                self.stacked_weight(&format!("{mlp}.switch_mlp.{part}"), count, out, inp)
            };
            let gate = stack("gate_proj", width, hidden_size)?;
            let up = stack("up_proj", width, hidden_size)?;
            return Ok(Experts {
                gate,
                up,
                down: stack("down_proj", hidden_size, width)?,
            });
        }
        if self.has(&format!("{mlp}.experts.gate_up_proj")) {
            let both = self.float(
                &format!("{mlp}.experts.gate_up_proj"),
                &[count, 2 * width, hidden_size],
            )?;
            let down = self.float(
                &format!("{mlp}.experts.down_proj"),
                &[count, hidden_size, width],
            )?;
            let part =
                |tensor: &StoredTensor, e, range| WeightSource::Plain(tensor.part(e).rows(range));
            return Ok(Experts {
                gate: (0..count).map(|e| part(&both, e, 0..width)).collect(),
                up: (0..count)
                    .map(|e| part(&both, e, width..2 * width))
                    .collect(),
                down: (0..count).map(|e| part(&down, e, 0..hidden_size)).collect(),
            });
        }
        let mut each = |part: &str, out, inp| {
            (0..count)
                .map(|e| self.weight(&format!("{mlp}.experts.{e}.{part}"), out, inp))
                .collect::<Result<Vec<_>>>()
        };
        let gate = each("gate_proj", width, hidden_size)?;
        let up = each("up_proj", width, hidden_size)?;
        Ok(Experts {
            gate,
            up,
            down: each("down_proj", hidden_size, width)?,
        })
    }
}
