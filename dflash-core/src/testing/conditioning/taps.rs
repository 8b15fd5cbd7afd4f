//! What a target hands to its draft.

use std::num::NonZeroUsize;
use std::path::Path;

use serde_json::json;

use crate::Result;
use crate::backend::Backend;
use crate::config::Architecture;
use crate::spec::{Pending, TargetModel};
use crate::testing::golden;
use crate::testing::tiny::{Tiny, target_config};

/// A target whose layer L adds L + 1 to channel 0 of a zero stream: the row captured for id L holds 1 + … + (L + 1). The
/// last layer too, before the final norm; ids in any order and twice. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_taps<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    const DEPTH: usize = 5;
    let config = target_config(Architecture::Llama, |c| {
        c["mlp_bias"] = json!(true);
        c["num_hidden_layers"] = json!(DEPTH);
    });
    let mut tiny = Tiny::target(config, 1)?;
    tiny.change_all("model.", |values| values.fill(0.0));
    for layer in 0..DEPTH {
        #[expect(clippy::cast_precision_loss, reason = "a layer's number")]
        tiny.change(
            &format!("model.layers.{layer}.mlp.down_proj.bias"),
            |bias| {
                bias[0] = (layer + 1) as f32;
            },
        )?;
    }
    let folder = scratch.join("counting");
    tiny.write(&folder)?;
    let mut target = golden::load_target(backend, &folder)?;
    let mut found = Vec::new();
    for taps in [&[0][..], &[DEPTH - 1], &[3, 1, 2], &[2, 2, 4, 0]] {
        target.set_taps(taps)?;
        let mut state = target.new_state()?;
        let mut contexts = vec![target.prefill(&mut state, &[1, 2, 3])?];
        let pending = target.verify(&mut state, 4, None)?;
        contexts.push(Pending::commit(pending, NonZeroUsize::MIN)?);
        for context in contexts {
            for (id, tensor) in taps.iter().zip(&context.taps) {
                let rows = backend.read(tensor)?;
                let width = rows.len() / context.rows;
                #[expect(clippy::cast_precision_loss, reason = "a small sum")]
                let sum = ((id + 1) * (id + 2) / 2) as f32;
                let fits = rows
                    .iter()
                    .enumerate()
                    .all(|(i, v)| *v == if i % width == 0 { sum } else { 0.0 });
                if !fits || context.taps.len() != taps.len() {
                    found.push(format!(
                        "tap {id} of {taps:?}: {:?}, expected {sum}",
                        &rows[..2]
                    ));
                }
            }
        }
    }
    if target.set_taps(&[DEPTH]).is_ok() {
        found.push("a tap past the last layer was taken".into());
    }
    Ok(found)
}
