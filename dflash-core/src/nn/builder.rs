//! Claims a layer's tensors and hands them to the backend.

use crate::backend::Backend;
use crate::checkpoint::{Claims, WeightSource};
use crate::{DType, Result};

use super::{Linear, Norm};

/// Changes how matrices are kept, between the file and the backend.
pub trait Repack: std::fmt::Debug {
    /// The matrix of a module, changed or as it is.
    ///
    /// # Errors
    /// The implementation's.
    fn weight(&mut self, module: &str, source: WeightSource) -> Result<WeightSource>;
}

/// Makes layers from a checkpoint's tensors; names are canonical, without a nest.
#[derive(Debug)]
pub struct Builder<'a, B: Backend> {
    /// Where tensors go.
    pub backend: &'a B,
    /// Where they come from, each once.
    pub claims: &'a mut Claims,
    repack: Option<&'a mut dyn Repack>,
}

impl<'a, B: Backend> Builder<'a, B> {
    /// A builder over a checkpoint's claims.
    pub fn new(backend: &'a B, claims: &'a mut Claims) -> Self {
        Self {
            backend,
            claims,
            repack: None,
        }
    }

    /// A builder that hands matrices on through `repack`.
    #[must_use]
    pub fn through(mut self, repack: Option<&'a mut dyn Repack>) -> Self {
        self.repack = repack;
        self
    }

    /// `module.weight` `[outputs, inputs]` and, if `bias`, `module.bias` `[outputs]`.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn linear(
        &mut self,
        module: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Linear<B>> {
        let weight = self.weight(module, outputs, inputs)?;
        let bias = if bias {
            Some(self.vector(&format!("{module}.bias"), &[outputs], self.backend.dtype())?)
        } else {
            None
        };
        Ok(Linear::new(weight, bias))
    }

    /// `module.weight` `[outputs, inputs]`, maybe packed.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn weight(&mut self, module: &str, outputs: usize, inputs: usize) -> Result<B::Weight> {
        let mut source = self.claims.weight(module, outputs, inputs)?;
        if let Some(repack) = &mut self.repack {
            source = repack.weight(module, source)?;
        }
        self.backend.weight(source)
    }

    /// A norm's plain multipliers.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn norm(&mut self, module: &str, dim: usize, eps: f32) -> Result<Norm<B>> {
        let weight = self.vector(&format!("{module}.weight"), &[dim], DType::F32)?;
        Ok(Norm { weight, eps })
    }

    /// A norm whose file may hold offsets from one (raw Hugging Face files of the Qwen3.5 family).
    /// The one is added in float32, since in bf16 the sum would be rounded.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn offset_norm(&mut self, module: &str, dim: usize, eps: f32) -> Result<Norm<B>> {
        let stored = self.claims.require(&format!("{module}.weight"), &[dim])?;
        let mut values = stored.to_f32()?;
        if self.claims.norms_are_offsets() {
            for v in &mut values {
                *v += 1.0;
            }
        }
        Ok(Norm {
            weight: self.backend.upload(&values, &[dim], DType::F32)?,
            eps,
        })
    }

    /// A small tensor as it is.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn vector(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<B::Tensor> {
        let stored = self.claims.require(name, shape)?;
        self.backend.upload(&stored.to_f32()?, shape, dtype)
    }
}
