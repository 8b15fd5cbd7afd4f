//! From the model's names to the file's.
//!
//! Models ask for canonical names: `embed_tokens.weight`, `layers.3.mlp.gate_proj`, `norm.weight`,
//! `lm_head`. Files put a prefix in front, one of four, which is found once per checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use super::tensor::StoredTensor;
use crate::{Error, Result};

/// A prefix that files put in front of the decoder's names, and the one in front of `lm_head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nest {
    pub(super) decoder: &'static str,
    pub(super) head: &'static str,
}

/// Bare names; Hugging Face text models; MLX conversions of multimodal models; the raw ones.
const NESTS: [Nest; 4] = [
    Nest {
        decoder: "",
        head: "",
    },
    Nest {
        decoder: "model.",
        head: "",
    },
    Nest {
        decoder: "language_model.model.",
        head: "language_model.",
    },
    Nest {
        decoder: "model.language_model.",
        head: "",
    },
];

impl Nest {
    /// The nest whose `layers.` or `embed_tokens.` the checkpoint has.
    pub(super) fn find(path: &Path, tensors: &BTreeMap<String, StoredTensor>) -> Result<Self> {
        let has = |prefix: &str| {
            tensors
                .range(prefix.to_owned()..)
                .next()
                .is_some_and(|(name, _)| name.starts_with(prefix))
        };
        let used = |nest: &Nest| {
            ["layers.", "embed_tokens."]
                .iter()
                .any(|part| has(&format!("{}{part}", nest.decoder)))
        };
        let mut found = NESTS.into_iter().filter(used);
        match (found.next(), found.next()) {
            (Some(nest), None) => Ok(nest),
            (Some(a), Some(b)) => Err(Error::checkpoint(
                path,
                format!(
                    "it holds two decoders, `{}layers` and `{}layers`",
                    a.decoder, b.decoder
                ),
            )),
            (None, _) => {
                let tried = NESTS.map(|n| format!("`{}layers.0`", n.decoder)).join(", ");
                Err(Error::checkpoint(
                    path,
                    format!("no decoder layers in it (looked for {tried})"),
                ))
            }
        }
    }

    /// The name of the decoder's prefix for people: `model.language_model`, or `(top level)`.
    pub(super) fn name(self) -> &'static str {
        if self.decoder.is_empty() {
            "(top level)"
        } else {
            self.decoder.trim_end_matches('.')
        }
    }

    /// Every spelling under which files keep the tensor or module `name`, most likely first.
    pub(super) fn spellings(self, name: &str) -> Vec<String> {
        if name.starts_with("lm_head") {
            return vec![format!("{}{name}", self.head)];
        }
        let mut names = vec![format!("{}{name}", self.decoder)];
        if !self.decoder.is_empty() {
            names.push(name.to_owned());
        }
        names
    }
}

/// Why a target's tensor is no part of its decoder.
pub(super) fn skipped(name: &str) -> Option<&'static str> {
    if name.ends_with("rotary_emb.inv_freq") {
        return Some("stored rope tables");
    }
    // Inside the decoder's layers nothing is skipped.
    for part in name.split('.').take_while(|part| *part != "layers") {
        match part {
            "mtp" => return Some("multi-token prediction"),
            "visual"
            | "vision_tower"
            | "vision_model"
            | "vision_embedder"
            | "embed_vision"
            | "multi_modal_projector" => {
                return Some("vision");
            }
            "audio_tower" | "embed_audio" => return Some("audio"),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Bytes;
    use super::super::tensor::StoredType;
    use super::*;

    fn nest(names: &[&str]) -> Result<Nest> {
        let tensor = |name: &&str| {
            let tensor = StoredTensor {
                name: (*name).into(),
                dtype: StoredType::F32,
                shape: vec![0],
                bytes: Bytes::copied(&[]),
            };
            ((*name).to_owned(), tensor)
        };
        Nest::find(Path::new("folder"), &names.iter().map(tensor).collect())
    }

    #[test]
    fn each_nest_is_found() {
        for expected in NESTS {
            let layer = format!("{}layers.0.input_layernorm.weight", expected.decoder);
            let found = nest(&[
                &layer,
                "lm_head.weight",
                "mtp.layers.0.norm.weight",
                "model.visual.blocks.0.norm.weight",
            ]);
            assert_eq!(found.expect("one nest"), expected);
        }
        assert!(
            nest(&["model.layers.0.a", "language_model.model.layers.0.a"]).is_err(),
            "two decoders"
        );
        assert!(
            nest(&["transformer.h.0.a"]).is_err() && nest(&[]).is_err(),
            "none"
        );
    }

    #[test]
    fn the_head_sits_at_its_own_level() {
        let spelled = |i: usize, name| NESTS[i].spellings(name).remove(0);
        assert_eq!(
            spelled(2, "lm_head.weight"),
            "language_model.lm_head.weight"
        );
        assert_eq!(spelled(3, "lm_head.weight"), "lm_head.weight");
        assert_eq!(
            spelled(3, "norm.weight"),
            "model.language_model.norm.weight"
        );
    }

    #[test]
    fn what_is_skipped() {
        for name in [
            "model.visual.blocks.0.mlp.fc1.weight",
            "vision_tower.x",
            "model.language_model.visual.y",
            "mtp.fc.weight",
            "language_model.mtp.layers.0.a",
        ] {
            assert!(skipped(name).is_some(), "{name}");
        }
        for name in [
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.visual.weight",
            "lm_head.weight",
            "mtp_head.weight",
        ] {
            assert!(skipped(name).is_none(), "{name}");
        }
        assert!(skipped("model.layers.3.self_attn.rotary_emb.inv_freq").is_some());
    }
}
