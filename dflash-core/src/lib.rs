//! Models, drafts and the round loop of DFlash speculative decoding.

pub mod checkpoint;
pub mod config;
pub mod dtype;
pub mod error;

pub use dtype::DType;
pub use error::{Error, PairingCheck, Result};
