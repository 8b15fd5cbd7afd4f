//! What tests of this crate, of backend crates and of third parties share.

pub mod conformance;
pub mod golden;
pub mod record;
