//! The mlx backend.
