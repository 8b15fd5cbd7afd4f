//! Help for the tests of this workspace and of backends outside it.

pub mod conformance;
