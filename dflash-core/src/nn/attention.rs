//! Multi-head attention with grouped keys and values.

use super::{Builder, Linear, Norm};
use crate::Result;
use crate::backend::{Backend, Block, BlockRule, Unary, Visibility};
use crate::cache::KvCache;

/// Sizes of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Whether q, k, v and o have biases.
    pub bias: bool,
    /// Whether q and k are normalised per head.
    pub qk_norm: bool,
    /// Whether the q projection also yields a sigmoid gate on the output (Qwen3.5).
    pub output_gate: bool,
    /// Whether norms may be stored as offsets from one (Qwen3.5).
    pub offset_norms: bool,
    /// Added to the mean square in the norms of q and k.
    pub eps: f32,
}

/// Attention over a cache, with or without a block beside it.
#[derive(Debug)]
pub struct Attention<B: Backend> {
    q: Linear<B>,
    k: Linear<B>,
    v: Linear<B>,
    o: Linear<B>,
    q_norm: Option<Norm<B>>,
    k_norm: Option<Norm<B>>,
    shape: AttentionShape,
}

/// Keys and values `[1, kv_heads, rows, head_dim]` of some rows.
#[derive(Debug)]
pub struct Heads<B: Backend> {
    /// Keys, rotated.
    pub k: B::Tensor,
    /// Values.
    pub v: B::Tensor,
}

impl<B: Backend> Attention<B> {
    /// Claims `module.{q,k,v,o}_proj` and, if the shape has them, `module.{q,k}_norm`.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn load(b: &mut Builder<'_, B>, module: &str, shape: AttentionShape) -> Result<Self> {
        let (width, kv_width) = (
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
        );
        let queries = if shape.output_gate { 2 * width } else { width };
        let norm = |b: &mut Builder<'_, B>, name: &str| -> Result<Option<Norm<B>>> {
            let module = format!("{module}.{name}");
            Ok(match (shape.qk_norm, shape.offset_norms) {
                (false, _) => None,
                (true, false) => Some(b.norm(&module, shape.head_dim, shape.eps)?),
                (true, true) => Some(b.offset_norm(&module, shape.head_dim, shape.eps)?),
            })
        };
        Ok(Self {
            q: b.linear(
                &format!("{module}.q_proj"),
                queries,
                shape.hidden,
                shape.bias,
            )?,
            k: b.linear(
                &format!("{module}.k_proj"),
                kv_width,
                shape.hidden,
                shape.bias,
            )?,
            v: b.linear(
                &format!("{module}.v_proj"),
                kv_width,
                shape.hidden,
                shape.bias,
            )?,
            o: b.linear(&format!("{module}.o_proj"), shape.hidden, width, shape.bias)?,
            q_norm: norm(b, "q_norm")?,
            k_norm: norm(b, "k_norm")?,
            shape,
        })
    }

    /// Causal attention of new rows that become pending in the cache.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward_cached(
        &self,
        b: &B,
        x: &B::Tensor,
        cache: &mut KvCache<B>,
        angles: &B::Rope,
        position: usize,
    ) -> Result<B::Tensor> {
        let own = self.keys_values(b, x, angles)?;
        cache.append(&own.k, &own.v)?;
        let visible = Visibility {
            first_key: cache.first_position(),
            first_query: position,
            window: cache.window(),
        };
        self.attend(b, x, angles, cache.storage(), None, &visible)
    }

    /// Attention of a block over committed context; the block's own keys and values are not cached.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward_beside(
        &self,
        b: &B,
        x: &B::Tensor,
        context: &KvCache<B>,
        angles: &B::Rope,
        position: usize,
        rule: BlockRule,
    ) -> Result<B::Tensor> {
        let own = self.keys_values(b, x, angles)?;
        let visible = Visibility {
            first_key: context.first_position(),
            first_query: position,
            window: context.window(),
        };
        self.attend(
            b,
            x,
            angles,
            context.storage(),
            Some(Block {
                k: &own.k,
                v: &own.v,
                rule,
            }),
            &visible,
        )
    }

    /// Keys and values of rows, rotated to their positions.
    ///
    /// # Errors
    /// The backend's.
    pub fn keys_values(&self, b: &B, x: &B::Tensor, angles: &B::Rope) -> Result<Heads<B>> {
        let k = self.split(b, &self.k.forward(b, x)?, self.shape.kv_heads)?;
        let k = b.norm_rope(&k, self.k_norm.as_ref().map(|n| (&n.weight, n.eps)), angles)?;
        let v = self.split(b, &self.v.forward(b, x)?, self.shape.kv_heads)?;
        Ok(Heads { k, v })
    }

    fn attend(
        &self,
        b: &B,
        x: &B::Tensor,
        angles: &B::Rope,
        kv: &B::Kv,
        block: Option<Block<'_, B::Tensor>>,
        visible: &Visibility,
    ) -> Result<B::Tensor> {
        let AttentionShape {
            heads,
            head_dim,
            output_gate,
            ..
        } = self.shape;
        let rows = b.dim(x, 1);
        let mut q = self.q.forward(b, x)?;
        let mut gate = None;
        if output_gate {
            // Per head: the query's features, then the gate's.
            let both = b.reshape(&q, &[1, rows, heads, 2 * head_dim])?;
            q = b.slice(&both, 3, 0, head_dim)?;
            gate = Some(b.reshape(
                &b.slice(&both, 3, head_dim, head_dim)?,
                &[1, rows, heads * head_dim],
            )?);
        } else {
            q = b.reshape(&q, &[1, rows, heads, head_dim])?;
        }
        let q = b.norm_rope(
            &b.swap_axes(&q, 1, 2)?,
            self.q_norm.as_ref().map(|n| (&n.weight, n.eps)),
            angles,
        )?;
        #[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
        let scale = (head_dim as f32).sqrt().recip();
        let out = b.attention(&q, kv, block, scale, visible)?;
        let mut out = b.reshape(&b.swap_axes(&out, 1, 2)?, &[1, rows, heads * head_dim])?;
        if let Some(gate) = gate {
            out = b.mul(&out, &b.unary(&gate, Unary::Sigmoid)?)?;
        }
        self.o.forward(b, &out)
    }

    /// `[1, rows, heads * head_dim]` to `[1, heads, rows, head_dim]`.
    fn split(&self, b: &B, x: &B::Tensor, heads: usize) -> Result<B::Tensor> {
        let rows = b.dim(x, 1);
        b.swap_axes(&b.reshape(x, &[1, rows, heads, self.shape.head_dim])?, 1, 2)
    }
}
