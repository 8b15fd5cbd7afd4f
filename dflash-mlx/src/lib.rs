//! The MLX backend of dflash.
//!
//! The crate is an empty shell: no operation is implemented yet, on any platform. It depends on
//! `mlx-rs` on macOS only, so that the workspace builds everywhere.
