//! What tests of this crate, of backend crates and of third parties share.
//!
//! Checks are functions over a backend and a folder. They return what differs, so that a positive
//! control can expect a difference, and so that every backend runs the same ones.

pub mod conditioning;
pub mod conformance;
pub mod damage;
pub mod drive;
pub mod fakes;
pub mod fault;
pub mod golden;
pub mod injection;
pub mod inspect;
pub mod lossless;
pub mod nano;
pub mod parity;
mod plan;
pub mod quantized;
pub mod record;
pub mod row_noise;
pub mod scripted;
pub mod states;
pub mod ties;
pub mod tiny;
pub mod twin;
