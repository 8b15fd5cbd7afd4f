//! Readers of the files that describe a model: one reader per kind of file.
//!
//! Every key that changes the computed numbers is either read into a typed field or refused by
//! name; a key that is known to change nothing stands in a table of its reader; any other key
//! becomes a note. Nothing is guessed: where the formats' own implementations disagree about a
//! default, the key is required. The alternative, deserialising into a struct that ignores what
//! it does not know, is how a runtime comes to compute a different model without saying so.

mod draft;
mod draft_keys;
mod draft_quant;
mod generation;
mod json;
mod keys;
mod quant;
mod rope;
mod rope_keys;
mod target;
mod target_attention;
mod target_layers;

pub use draft::{Dflash2Config, DraftConfig, DraftKind, DraftLayer};
pub use draft_quant::{ActivationWidth, DraftQuant, DraftSpec};
pub use generation::GenerationConfig;
pub use quant::{QuantConfig, QuantMode, QuantSpec};
pub use rope::{RopeConfig, RopeScaling};
pub use target::{
    Architecture, AttentionConfig, GatedDeltaConfig, LayerConfig, Mixer, MoeConfig, TargetConfig,
};
