//! Root-mean-square norm.

use crate::Result;
use crate::backend::Backend;

/// `x / sqrt(mean(x²) + eps) * weight`.
#[derive(Debug)]
pub struct Norm<B: Backend> {
    /// Plain multipliers, float32.
    pub weight: B::Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Backend> Norm<B> {
    /// Normalises the last axis.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        backend.rms_norm(x, Some(&self.weight), self.eps)
    }
}
