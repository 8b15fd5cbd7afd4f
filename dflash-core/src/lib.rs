//! Models, drafts and the round loop of DFlash speculative decoding, independent of any tensor library.

pub mod backend;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod draft;
pub mod dtype;
pub mod error;
pub mod load;
pub mod models;
pub mod nn;
pub mod spec;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;

pub use dtype::DType;
pub use error::{Error, PairingCheck, Result};
