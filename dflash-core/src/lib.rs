//! Models, drafts and the round loop of DFlash speculative decoding.

pub mod dtype;
pub mod error;
#[cfg(feature = "text")]
pub mod text;

pub use dtype::DType;
pub use error::{Error, PairingCheck, Result};
