//! Whether a draft and a target belong together, decided before anything is computed.

use crate::config::{DraftConfig, TargetConfig};
use crate::{Error, PairingCheck, Result};

/// A draft that fits its target.
#[derive(Debug)]
pub struct Pair {
    /// What is unusual but allowed.
    pub notes: Vec<String>,
}

/// Checks everything that the two configs say about each other. The draft's head sizes, theta and depth are its own.
///
/// # Errors
/// [`Error::Pairing`] with both sides and their numbers.
pub fn check_pair(target: &TargetConfig, draft: &DraftConfig) -> Result<Pair> {
    let depth = target.layers.len();
    let fail = |check, reason: String, hint: &str| {
        Err(Error::Pairing {
            check,
            reason,
            hint: Some(hint.into()),
        })
    };
    if draft.hidden_size != target.hidden_size {
        let reason = format!(
            "the draft's hidden size is {}, the target's {}",
            draft.hidden_size, target.hidden_size
        );
        return fail(
            PairingCheck::Hidden,
            reason,
            "this draft was made for another model; use the one published for this target",
        );
    }
    if let Some(layers) = draft.num_target_layers.filter(|n| *n != depth) {
        let reason =
            format!("the draft was made for a target of {layers} layers, this one has {depth}");
        return fail(
            PairingCheck::Layers,
            reason,
            "use the draft published for this target",
        );
    }
    let mut notes = Vec::new();
    for (i, id) in draft.target_layer_ids.iter().enumerate() {
        if *id >= depth {
            let hint = if *id == depth {
                "ids count layers from 0; an id equal to the number of layers hints that the file stores them shifted by one"
            } else {
                "use the draft published for this target"
            };
            return fail(
                PairingCheck::Taps,
                format!(
                    "tap {id} does not exist, the target has layers 0 to {}",
                    depth - 1
                ),
                hint,
            );
        }
        if draft.target_layer_ids[..i].contains(id) {
            notes.push(format!("the draft listens to layer {id} twice"));
        }
    }
    if draft.target_layer_ids.windows(2).any(|w| w[0] > w[1]) {
        notes.push(format!(
            "the draft's taps are not in ascending order: {:?}",
            draft.target_layer_ids
        ));
    }
    if draft.vocab_size != target.vocab_size {
        let reason = format!(
            "the draft's vocabulary has {} ids, the target's embedding {} rows",
            draft.vocab_size, target.vocab_size
        );
        return fail(
            PairingCheck::Vocabulary,
            reason,
            "use the draft published for this target",
        );
    }
    if draft.mask_token_id as usize >= target.vocab_size {
        let reason = format!(
            "the mask token {} is outside the target's embedding of {} rows",
            draft.mask_token_id, target.vocab_size
        );
        return fail(
            PairingCheck::MaskToken,
            reason,
            "use the draft published for this target",
        );
    }
    Ok(Pair { notes })
}
