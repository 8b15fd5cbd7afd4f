//! The candle backend.
