//! The gated-delta layer (linear attention of the Qwen3.5 family).

use std::rc::Rc;

use super::{Builder, Linear, Norm};
use crate::backend::{Backend, DeltaParams};
use crate::cache::{RecurrentCache, Tape};
use crate::config::GatedDeltaConfig;
use crate::{DType, Result};

/// Projections, short convolution, delta rule and gated norm.
#[derive(Debug)]
pub struct GatedDelta<B: Backend> {
    qkv: Linear<B>,
    z: Linear<B>,
    strength: Linear<B>,
    decay: Linear<B>,
    /// `[taps, channels]`.
    kernel: B::Tensor,
    params: Rc<DeltaParams<B::Tensor>>,
    norm: Norm<B>,
    out: Linear<B>,
}

impl<B: Backend> GatedDelta<B> {
    /// Claims the tensors under `module` (`layers.N.linear_attn`).
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn load(
        b: &mut Builder<'_, B>,
        module: &str,
        hidden: usize,
        config: &GatedDeltaConfig,
        eps: f32,
    ) -> Result<Self> {
        let name = |part: &str| format!("{module}.{part}");
        let &GatedDeltaConfig {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            conv_kernel: taps,
        } = config;
        let params = DeltaParams {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps,
            a_log: b.vector(&name("A_log"), &[value_heads], DType::F32)?,
            dt_bias: b.vector(&name("dt_bias"), &[value_heads], DType::F32)?,
        };
        let (channels, width) = (params.channels(), value_heads * value_dim);
        let by_channel = b
            .claims
            .conv_kernel(&name("conv1d.weight"), channels, taps)?
            .to_f32()?;
        let by_tap: Vec<f32> = (0..taps * channels)
            .map(|i| by_channel[i % channels * taps + i / channels])
            .collect();
        Ok(Self {
            qkv: b.linear(&name("in_proj_qkv"), channels, hidden, false)?,
            z: b.linear(&name("in_proj_z"), width, hidden, false)?,
            strength: b.linear(&name("in_proj_b"), value_heads, hidden, false)?,
            decay: b.linear(&name("in_proj_a"), value_heads, hidden, false)?,
            kernel: b
                .backend
                .upload(&by_tap, &[taps, channels], b.backend.dtype())?,
            params: Rc::new(params),
            norm: b.norm(&name("norm"), value_dim, eps)?,
            out: b.linear(&name("out_proj"), hidden, width, false)?,
        })
    }

    /// An empty cache for this layer.
    ///
    /// # Errors
    /// The backend's.
    pub fn new_cache(&self, b: &B) -> Result<RecurrentCache<B>> {
        RecurrentCache::new(b, &self.params)
    }

    /// Runs rows from the cache's committed state and records them there as pending.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward(
        &self,
        b: &B,
        x: &B::Tensor,
        cache: &mut RecurrentCache<B>,
    ) -> Result<B::Tensor> {
        let DeltaParams {
            value_heads,
            value_dim,
            ..
        } = *self.params;
        let rows = b.dim(x, 1);
        let raw = self.qkv.forward(b, x)?;
        let mixed = b.short_conv(cache.window(), &raw, &self.kernel)?;
        let decay = self.decay.forward(b, x)?;
        let strength = self.strength.forward(b, x)?;
        let (y, state) = b.gated_delta(cache.state(), &mixed, &decay, &strength, &self.params)?;
        cache.record(Tape {
            raw,
            mixed,
            decay,
            strength,
            state,
            params: Rc::clone(&self.params),
            prepared: None,
        });
        let z = b.reshape(&self.z.forward(b, x)?, &[1, rows, value_heads, value_dim])?;
        let y = b.gated_rms_norm(&y, &z, &self.norm.weight, self.norm.eps)?;
        self.out
            .forward(b, &b.reshape(&y, &[1, rows, value_heads * value_dim])?)
    }
}
