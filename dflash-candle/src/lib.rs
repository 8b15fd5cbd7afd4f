//! The candle backend.

pub mod kernels;
