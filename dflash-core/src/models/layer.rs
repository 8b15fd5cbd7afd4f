//! One decoder layer and its cache.

use crate::Result;
use crate::backend::{Backend, KvShape};
use crate::cache::{Cache, CacheKind, KvCache, RecurrentCache, Rollback};
use crate::config::{Mixer, TargetConfig};
use crate::nn::{Attention, AttentionShape, Builder, GatedDelta, Mlp, Moe, Norm};

/// `h += mixer(norm(h)); h += feed_forward(norm(h))`.
#[derive(Debug)]
pub struct Layer<B: Backend> {
    before_mixer: Norm<B>,
    mixer: MixerLayer<B>,
    before_feed: Norm<B>,
    feed: Feed<B>,
}

#[derive(Debug)]
enum MixerLayer<B: Backend> {
    Attention {
        layer: Attention<B>,
        shape: KvShape,
        window: Option<usize>,
    },
    GatedDelta(GatedDelta<B>),
}

#[derive(Debug)]
enum Feed<B: Backend> {
    Dense(Mlp<B>),
    Sparse(Moe<B>),
}

/// The cache of one layer.
#[derive(Debug)]
pub enum LayerCache<B: Backend> {
    /// Of an attention layer.
    Kv(KvCache<B>),
    /// Of a gated-delta layer.
    Recurrent(RecurrentCache<B>),
}

impl<B: Backend> Layer<B> {
    /// Claims the tensors of layer `index`.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name; or a config that leaves a size out.
    pub fn load(b: &mut Builder<'_, B>, index: usize, config: &TargetConfig) -> Result<Self> {
        let name = |part: &str| format!("layers.{index}.{part}");
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let described = &config.layers[index];
        let mixer = match described.mixer {
            Mixer::GatedDelta => {
                let sizes = config
                    .gated_delta
                    .as_ref()
                    .ok_or_else(|| missing(config, "linear_num_value_heads"))?;
                MixerLayer::GatedDelta(GatedDelta::load(
                    b,
                    &name("linear_attn"),
                    hidden,
                    sizes,
                    eps,
                )?)
            }
            Mixer::Full => Self::attention(b, &name("self_attn"), config, None)?,
            Mixer::Sliding { window } => {
                Self::attention(b, &name("self_attn"), config, Some(window))?
            }
        };
        let feed = if described.sparse {
            let sizes = config
                .moe
                .as_ref()
                .ok_or_else(|| missing(config, "num_experts"))?;
            Feed::Sparse(Moe::load(b, &name("mlp"), hidden, sizes)?)
        } else {
            let size = config
                .intermediate_size
                .ok_or_else(|| missing(config, "intermediate_size"))?;
            Feed::Dense(Mlp::load(b, &name("mlp"), hidden, size, config.mlp_bias)?)
        };
        Ok(Self {
            before_mixer: b.offset_norm(&name("input_layernorm"), hidden, eps)?,
            mixer,
            before_feed: b.offset_norm(&name("post_attention_layernorm"), hidden, eps)?,
            feed,
        })
    }

    fn attention(
        b: &mut Builder<'_, B>,
        module: &str,
        config: &TargetConfig,
        window: Option<usize>,
    ) -> Result<MixerLayer<B>> {
        let a = &config.attention;
        let shape = AttentionShape {
            hidden: config.hidden_size,
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            bias: a.bias,
            qk_norm: a.qk_norm,
            output_gate: a.output_gate,
            offset_norms: true,
            eps: config.rms_norm_eps,
        };
        let layer = Attention::load(b, module, shape)?;
        Ok(MixerLayer::Attention {
            layer,
            shape: KvShape {
                heads: a.kv_heads,
                head_dim: a.head_dim,
            },
            window,
        })
    }

    /// An empty cache for this layer.
    ///
    /// # Errors
    /// The backend's.
    pub fn new_cache(&self, b: &B) -> Result<LayerCache<B>> {
        Ok(match &self.mixer {
            MixerLayer::Attention { shape, window, .. } => {
                LayerCache::Kv(KvCache::new(b, *shape, *window)?)
            }
            MixerLayer::GatedDelta(layer) => LayerCache::Recurrent(layer.new_cache(b)?),
        })
    }

    /// `[1, rows, hidden]` to the same; the rows become pending in the cache.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward(
        &self,
        b: &B,
        h: &B::Tensor,
        cache: &mut LayerCache<B>,
        angles: &B::Rope,
        position: usize,
    ) -> Result<B::Tensor> {
        let x = self.before_mixer.forward(b, h)?;
        let mixed = match (&self.mixer, cache) {
            (MixerLayer::Attention { layer, .. }, LayerCache::Kv(cache)) => {
                layer.forward_cached(b, &x, cache, angles, position)?
            }
            (MixerLayer::GatedDelta(layer), LayerCache::Recurrent(cache)) => {
                layer.forward(b, &x, cache)?
            }
            _ => unreachable!("invariant: a cache is made by the layer that it is handed to"),
        };
        let h = b.add(h, &mixed)?;
        let x = self.before_feed.forward(b, &h)?;
        let fed = match &self.feed {
            Feed::Dense(mlp) => mlp.forward(b, &x)?,
            Feed::Sparse(moe) => moe.forward(b, &x)?,
        };
        b.add(&h, &fed)
    }
}

fn missing(config: &TargetConfig, key: &str) -> crate::Error {
    crate::Error::config(&config.path, key, "it is missing, but a layer needs it")
}

impl<B: Backend> Cache for LayerCache<B> {
    fn len(&self) -> usize {
        match self {
            Self::Kv(c) => c.len(),
            Self::Recurrent(c) => c.len(),
        }
    }

    fn kind(&self) -> CacheKind {
        match self {
            Self::Kv(c) => c.kind(),
            Self::Recurrent(c) => c.kind(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Kv(c) => c.bytes(),
            Self::Recurrent(c) => c.bytes(),
        }
    }

    fn can_trim(&self) -> bool {
        match self {
            Self::Kv(c) => c.can_trim(),
            Self::Recurrent(c) => c.can_trim(),
        }
    }

    fn fork(&self) -> Result<Self> {
        Ok(match self {
            Self::Kv(c) => Self::Kv(c.fork()?),
            Self::Recurrent(c) => Self::Recurrent(c.fork()?),
        })
    }
}

impl<B: Backend> Rollback for LayerCache<B> {
    fn pending(&self) -> usize {
        match self {
            Self::Kv(c) => c.pending(),
            Self::Recurrent(c) => c.pending(),
        }
    }

    fn prepare(&mut self, rows: usize) -> Result<()> {
        match self {
            Self::Kv(c) => c.prepare(rows),
            Self::Recurrent(c) => c.prepare(rows),
        }
    }

    fn keep(&mut self, rows: usize) {
        match self {
            Self::Kv(c) => c.keep(rows),
            Self::Recurrent(c) => c.keep(rows),
        }
    }

    fn discard(&mut self) {
        match self {
            Self::Kv(c) => c.discard(),
            Self::Recurrent(c) => c.discard(),
        }
    }
}
