//! Layers, generic over the backend. They hold weights; caches and positions come from the caller.

mod attention;
mod builder;
mod gated_delta;
mod linear;
mod mlp;
mod moe;
mod norm;

pub use attention::{Attention, AttentionShape, Heads};
pub use builder::{Builder, Repack};
pub use gated_delta::GatedDelta;
pub use linear::Linear;
pub use mlp::Mlp;
pub use moe::Moe;
pub use norm::Norm;
