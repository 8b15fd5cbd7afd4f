//! Target models: one skeleton, composed by the config, generic over the backend.
//!
//! What tells architectures apart (head norms, gates, sparse layers, recurrent layers, naming) is
//! data in [`TargetConfig`], so a further dense architecture is a reader, not a copy of a model.

mod decoder;
mod diagnose;
mod info;
mod layer;
mod rounding;
mod state;
mod target;

pub use decoder::{Borrowed, Decoder};
pub use info::ModelInfo;
pub use layer::{Layer, LayerCache};
pub use rounding::RowDifference;
pub use state::TargetState;
pub use target::{Context, LastRow, Pending, Target};

#[cfg(doc)]
use crate::config::TargetConfig;
