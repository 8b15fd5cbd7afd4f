//! One layer of a draft.

use super::conv::DynamicConv;
use crate::Result;
use crate::backend::{Backend, BlockRule, KvShape};
use crate::cache::KvCache;
use crate::config::{DraftConfig, DraftLayer};
use crate::nn::{Attention, AttentionShape, Builder, Mlp, Norm};

/// Attention over context and block, and a SwiGLU layer; in DFlash 2 each inside a convolution.
#[derive(Debug)]
pub(super) struct Layer<B: Backend> {
    before_attention: Norm<B>,
    attention: Attention<B>,
    attention_conv: Option<DynamicConv<B>>,
    before_mlp: Norm<B>,
    mlp: Mlp<B>,
    mlp_conv: Option<DynamicConv<B>>,
    shape: KvShape,
    window: Option<usize>,
    rule: BlockRule,
}

impl<B: Backend> Layer<B> {
    pub(super) fn load(
        b: &mut Builder<'_, B>,
        index: usize,
        config: &DraftConfig,
        described: &DraftLayer,
        window: Option<usize>,
    ) -> Result<Self> {
        let name = |part: &str| format!("layers.{index}.{part}");
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let shape = AttentionShape {
            hidden,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            bias: config.attention_bias,
            qk_norm: true,
            output_gate: false,
            offset_norms: false,
            eps,
        };
        let conv = |b: &mut Builder<'_, B>, part: &str| {
            config
                .dflash2
                .as_ref()
                .map(|c| DynamicConv::load(b, &name(part), hidden, c))
                .transpose()
        };
        Ok(Self {
            before_attention: b.norm(&name("input_layernorm"), hidden, eps)?,
            attention: Attention::load(b, &name("self_attn"), shape)?,
            attention_conv: conv(b, "attention_conv")?,
            before_mlp: b.norm(&name("post_attention_layernorm"), hidden, eps)?,
            mlp: Mlp::load(b, &name("mlp"), hidden, config.intermediate_size, false)?,
            mlp_conv: conv(b, "mlp_conv")?,
            shape: KvShape {
                heads: config.kv_heads,
                head_dim: config.head_dim,
            },
            window,
            rule: if described.causal {
                BlockRule::Causal
            } else {
                BlockRule::Bidirectional
            },
        })
    }

    /// An empty context for this layer.
    pub(super) fn new_context(&self, b: &B) -> Result<KvCache<B>> {
        KvCache::new(b, self.shape, self.window)
    }

    /// Keeps the keys and values of context rows. They see no norm of this layer: the same row feeds every layer.
    pub(super) fn absorb(
        &self,
        b: &B,
        rows: &B::Tensor,
        angles: &B::Rope,
        context: &mut KvCache<B>,
    ) -> Result<()> {
        let own = self.attention.keys_values(b, rows, angles)?;
        context.push(&own.k, &own.v)
    }

    /// Block rows `[1, rows, hidden]` to the same.
    pub(super) fn forward(
        &self,
        b: &B,
        h: &B::Tensor,
        context: &KvCache<B>,
        angles: &B::Rope,
        position: usize,
    ) -> Result<B::Tensor> {
        let x = self.before_attention.forward(b, h)?;
        let attend = |x: &B::Tensor| {
            self.attention
                .forward_beside(b, x, context, angles, position, self.rule)
        };
        let h = b.add(h, &convolved(b, self.attention_conv.as_ref(), &x, attend)?)?;
        let x = self.before_mlp.forward(b, &h)?;
        let feed = |x: &B::Tensor| self.mlp.forward(b, x);
        b.add(&h, &convolved(b, self.mlp_conv.as_ref(), &x, feed)?)
    }
}

/// `conv(sublayer(conv(x, 0)), 1)`, or the sub-layer alone.
fn convolved<B: Backend>(
    b: &B,
    conv: Option<&DynamicConv<B>>,
    x: &B::Tensor,
    sublayer: impl Fn(&B::Tensor) -> Result<B::Tensor>,
) -> Result<B::Tensor> {
    let Some(conv) = conv else { return sublayer(x) };
    let kernels = conv.kernels(b, x)?;
    let y = sublayer(&conv.apply(b, x, &kernels, 0)?)?;
    conv.apply(b, &y, &kernels, 1)
}
