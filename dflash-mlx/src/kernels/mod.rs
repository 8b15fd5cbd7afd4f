//! What the safe bindings of MLX do not offer. This folder is the only place of the crate that contains `unsafe`.
#![expect(
    unsafe_code,
    reason = "calls of MLX's C interface; each block states why it is sound"
)]

pub(crate) mod device;
pub(crate) mod metal;
pub(crate) mod small_float;
