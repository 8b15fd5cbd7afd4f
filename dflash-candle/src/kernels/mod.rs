//! Hand-written kernels on plain slices, without tensor types.
//!
//! This folder is the only place of the crate that contains `unsafe`: vector instructions, the
//! thread pool's borrowed closures, and outputs that several threads fill in disjoint parts.
#![expect(
    unsafe_code,
    reason = "vector instructions and disjoint parallel writes; each block states why it is sound"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "one index runs over several arrays of a register tile"
)]

pub mod cpu;
