//! Shape twins: checkpoints with random weights and the head sizes, vocabulary and packing of published pairs.
//!
//! A twin says nothing sensible; it runs every kernel on the shapes that matter. Tensors are written one after another, a
//! piece at a time, so that a twin may be larger than memory. The same name, options and seed give the same bytes.

mod layout;
mod published;
mod write;

use std::path::Path;

use serde_json::{Value, json};

use super::golden;
use super::plan::Plan;
use crate::backend::Backend;
use crate::checkpoint::SmallFloat;
use crate::config::{DraftConfig, TargetConfig};
use crate::spec::Request;
use crate::{Error, Result};
use layout::{Codes, packed_modules};

pub use published::NAMES;

/// How a twin's target is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// As published: bf16, the names of raw files.
    #[default]
    None,
    /// MLX's affine packing in groups of 64, the names of converted files.
    Affine {
        /// 4 or 8.
        bits: u8,
    },
    /// MLX's packing of small floats; routers are affine with 8 bits. The names of converted files.
    SmallFloat(SmallFloat),
}

/// What kind of twin to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TwinOptions {
    /// Layers of the target; `None` takes the published number.
    pub layers: Option<usize>,
    /// How the target is stored; the draft is bf16, as published.
    pub packing: Packing,
    /// Head sizes as published, but narrow, with few heads, few experts and a small vocabulary: megabytes in place of gigabytes.
    pub tiny: bool,
    /// Seeds the weights.
    pub seed: u64,
}

/// Writes the twin of a published pair into `folder/target` and `folder/draft`. Returns the bytes written.
///
/// # Errors
/// [`Error::Request`] for a name that is not in [`NAMES`] or no layers; or if the folder cannot be written.
pub fn write(name: &str, options: &TwinOptions, folder: &Path) -> Result<u64> {
    let Some(pair) = published::pair(name, options) else {
        let reason = format!(
            "`{name}` is not known, expected one of {}",
            NAMES.join(", ")
        );
        return Err(Error::request("shape-twin", reason));
    };
    let (mut target, draft) = pair?;
    let read = TargetConfig::parse(Path::new("config.json"), target.to_string().as_bytes())?;
    let raw = Plan::target(&read);
    let hybrid = read.architecture.is_hybrid();
    let tensors = match options.packing {
        Packing::None => layout::raw(raw, hybrid),
        Packing::Affine { bits } => {
            let entry = json!({"group_size": layout::GROUP, "bits": bits, "mode": "affine"});
            target["quantization"] = quantization(entry, &packed_modules(&raw, hybrid));
            layout::packed(raw, hybrid, Codes::Affine(bits))
        }
        Packing::SmallFloat(format) => {
            let (bits, group) = (format.bits(), format.group());
            let entry = json!({"group_size": group, "bits": bits, "mode": format.name()});
            target["quantization"] = quantization(entry, &packed_modules(&raw, hybrid));
            layout::packed(raw, hybrid, Codes::SmallFloat(format))
        }
    };
    let target_bytes = write::checkpoint(&folder.join("target"), &target, &tensors, options.seed)?;
    let read = DraftConfig::parse(
        Path::new("config.json"),
        draft.to_string().as_bytes(),
        false,
    )?;
    let tensors = layout::plain(Plan::draft(&read));
    let draft_bytes = write::checkpoint(&folder.join("draft"), &draft, &tensors, options.seed + 1)?;
    Ok(target_bytes + draft_bytes)
}

/// Loads a twin from its folder and generates 20 tokens with the draft and without. Returns what differs, and the tokens.
///
/// # Errors
/// If it cannot be loaded or run.
pub fn check_text<B: Backend>(backend: &B, folder: &Path) -> Result<(Vec<String>, Vec<u32>)> {
    let draft = folder.join("draft");
    let mut pair = golden::load(backend, &folder.join("target"), Some(&draft))?;
    let request = golden::request(&[3, 1, 4, 1, 5, 926], 20);
    let alone = Request {
        draft: false,
        ..request.clone()
    };
    let plain = golden::generate(&mut pair, &alone)?;
    let report = golden::generate(&mut pair, &request)?;
    let mut found = Vec::new();
    if report.tokens != plain.tokens {
        let difference = golden::first_difference(&report.tokens, &plain.tokens);
        found.push(format!("tokens with the draft: {difference}"));
    }
    if !report.draft_active || report.drafted == 0 {
        found.push(format!(
            "the draft was not used: {:?}",
            report.draft_inactive_reason
        ));
    }
    if plain.tokens.len() != 20 || plain.tokens.iter().all(|id| *id == plain.tokens[0]) {
        found.push(format!("tokens {:?}", plain.tokens));
    }
    Ok((found, plain.tokens))
}

/// The config's entry; routers keep 8 bits, as converters leave them.
fn quantization(mut entry: Value, wide: &[String]) -> Value {
    for module in wide {
        entry[module.as_str()] = json!({"group_size": layout::GROUP, "bits": 8});
    }
    entry
}
