//! A matrix with an optional bias.

use crate::Result;
use crate::backend::Backend;

/// `x @ weightᵀ + bias`.
#[derive(Debug)]
pub struct Linear<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Tensor>,
}

impl<B: Backend> Linear<B> {
    /// From a matrix `[outputs, inputs]` and a bias `[outputs]`.
    pub fn new(weight: B::Weight, bias: Option<B::Tensor>) -> Self {
        Self { weight, bias }
    }

    /// `[1, rows, inputs]` to `[1, rows, outputs]`.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        backend.linear(&self.weight, x, self.bias.as_ref())
    }

    /// The matrix, if there is no bias to forget.
    pub fn plain_weight(&self) -> Option<&B::Weight> {
        self.bias.is_none().then_some(&self.weight)
    }
}
