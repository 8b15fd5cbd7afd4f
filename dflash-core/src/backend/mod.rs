//! The seam to a tensor library.
//!
//! [`Backend`] is what models and drafts are written against. Its operations are *fused* (attention
//! over a cache, a gated-delta scan, a mixture of experts, drawing a token), so that each backend
//! picks its own kernels, layouts and packed formats. A fused operation has a composite default,
//! written in [`fallback`] with required operations; a backend overrides it where it has better.
//!
//! Rejected: one implementation of each model per backend. The errors of this field sit in what
//! would be duplicated (taps, final norm, rope, config defaults, windows, rollback); operations are
//! easy to test against a naive reference, whole models on hardware that is not at hand are not.
//! To be looked at again if a measured plain decode falls more than 10 % behind the library's own
//! because operations are too small, if the trait passes 45 methods, or if a model wants to know
//! which backend it runs on.
//!
//! # Contract
//! * Activations are `[batch, time, dim]`, heads `[batch, heads, time, head_dim]`; batch is 1.
//! * Every operation takes non-contiguous input. Tensors are never written after they are made; only `Kv` changes.
//! * Equal values: the lowest index wins.
//! * A lazy backend evaluates in [`read`](Backend::read), [`read_ids`](Backend::read_ids), [`draw`](Backend::draw) and [`evaluate`](Backend::evaluate), nowhere else.
//! * Norms, softmax, recurrent states and rope angles are computed in float32; results have the dtype of the input.
//! * At the exact level a row's result does not depend on the other rows of the call.
//! * Callers pass shapes that fit (loaders have checked them); a backend reports a misfit as an error, never as a panic.

mod chip;
pub mod factory;
pub mod fallback;
pub mod host;
pub mod reference;
mod types;

pub use chip::Chip;
pub use types::{
    Block, BlockRule, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility,
};

use std::fmt::Debug;
use std::ops::Range;

use crate::checkpoint::{Experts, WeightSource};
use crate::spec::{ProposalRule, RowRule, Verdict};
use crate::{DType, Result};

/// A tensor library with the operations that models and drafts need. A cheap handle: clones share device, pool and counters.
pub trait Backend: Clone + Debug + 'static {
    /// A tensor; its clone is cheap and shares memory.
    type Tensor: Clone + Debug;
    /// Token ids `[n]`, maybe on the device.
    type Ids: Clone + Debug;
    /// A matrix `[out, in]` in the format of its file, maybe packed.
    type Weight: Debug;
    /// The gate, up and down matrices of a layer's experts.
    type Experts: Debug;
    /// One layer's keys and values, growing in place.
    type Kv: Debug;
    /// Rope angles of consecutive positions.
    type Rope: Clone + Debug;

    // What it is.

    /// The name that `--backend` takes.
    fn name(&self) -> &'static str;
    /// The device, as reports show it (`cpu`, `metal`).
    fn device(&self) -> &'static str;
    /// The format of activations.
    fn dtype(&self) -> DType;
    /// What a row of a many-row product equals.
    fn exactness(&self) -> Exactness;
    /// How an operation is served.
    fn implementation(&self, op: Op) -> Implementation;
    /// How often results were read back since the backend was made.
    fn readbacks(&self) -> u64;

    // Between host and device.

    /// A tensor of the given shape and format from host numbers.
    fn upload(&self, data: &[f32], shape: &[usize], dtype: DType) -> Result<Self::Tensor>;
    /// A matrix; its numbers stay in the file's format.
    fn weight(&self, source: WeightSource) -> Result<Self::Weight>;
    /// A layer's experts.
    fn experts(&self, source: Experts) -> Result<Self::Experts>;
    /// All numbers, row-major. Evaluates and counts as a read-back.
    fn read(&self, t: &Self::Tensor) -> Result<Vec<f32>>;
    /// All ids. Evaluates and counts as a read-back.
    fn read_ids(&self, ids: &Self::Ids) -> Result<Vec<u32>>;
    /// Evaluates what is queued behind the tensors.
    fn evaluate(&self, _tensors: &[&Self::Tensor]) -> Result<()> {
        Ok(())
    }
    /// Starts computing what is queued behind a tensor without waiting for it, so that the device
    /// works while the host queues what follows. A backend that computes at once has nothing to do.
    fn begin(&self, _t: &Self::Tensor) -> Result<()> {
        Ok(())
    }
    /// Ids from the host.
    fn upload_ids(&self, ids: &[u32]) -> Result<Self::Ids>;
    /// The ids of a block: the anchor, then the draft's.
    fn block_ids(&self, anchor: u32, draft: Option<&Self::Ids>) -> Result<Self::Ids>;

    // Shapes.

    /// Size of an axis.
    fn dim(&self, t: &Self::Tensor, axis: usize) -> usize;
    /// The same numbers in another shape.
    fn reshape(&self, t: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor>;
    /// Two axes exchanged.
    fn swap_axes(&self, t: &Self::Tensor, a: usize, b: usize) -> Result<Self::Tensor>;
    /// `len` entries of an axis from `start`.
    fn slice(
        &self,
        t: &Self::Tensor,
        axis: usize,
        start: usize,
        len: usize,
    ) -> Result<Self::Tensor>;
    /// Tensors side by side along an axis.
    fn concat(&self, parts: &[&Self::Tensor], axis: usize) -> Result<Self::Tensor>;
    /// The same numbers in another format.
    fn cast(&self, t: &Self::Tensor, dtype: DType) -> Result<Self::Tensor>;

    // Elementwise and reductions. Sizes of 1 broadcast; ranks are equal.

    /// `a + b`.
    fn add(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// `a * b`.
    fn mul(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// `a * factor + offset`.
    fn affine(&self, a: &Self::Tensor, factor: f32, offset: f32) -> Result<Self::Tensor>;
    /// A function of each number.
    fn unary(&self, a: &Self::Tensor, function: Unary) -> Result<Self::Tensor>;
    /// Sum over the last axis, which becomes 1.
    fn sum_last(&self, a: &Self::Tensor) -> Result<Self::Tensor>;

    // Products and layers.

    /// `x @ weightᵀ (+ bias)`: `[1, rows, in]` to `[1, rows, out]`.
    fn linear(
        &self,
        weight: &Self::Weight,
        x: &Self::Tensor,
        bias: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;
    /// Rows of the matrix: `[1, n, in]`, in the given format.
    fn embedding(
        &self,
        weight: &Self::Weight,
        ids: &Self::Ids,
        dtype: DType,
    ) -> Result<Self::Tensor>;
    /// `x / sqrt(mean(x²) + eps) * weight` over the last axis.
    fn rms_norm(
        &self,
        x: &Self::Tensor,
        weight: Option<&Self::Tensor>,
        eps: f32,
    ) -> Result<Self::Tensor>;
    /// Angles of positions `first .. first + rows`, made once per forward pass.
    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<Self::Rope>;
    /// [`rms_norm`](Self::rms_norm) per head if a weight and its eps are given, then rotates the first `dims` features of heads
    /// `[1, heads, rows, head_dim]`, feature i with i + dims/2.
    fn norm_rope(
        &self,
        x: &Self::Tensor,
        norm: Option<(&Self::Tensor, f32)>,
        angles: &Self::Rope,
    ) -> Result<Self::Tensor>;
    /// Attention of queries `[1, heads, rows, head_dim]` over a cache and, if given, a block beside it that is not cached.
    fn attention(
        &self,
        q: &Self::Tensor,
        kv: &Self::Kv,
        block: Option<Block<'_, Self::Tensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<Self::Tensor>;

    // Keys and values of one layer; rows are positions.

    /// Empty storage.
    fn kv_new(&self, shape: KvShape) -> Result<Self::Kv>;
    /// Adds rows `[1, kv_heads, rows, head_dim]` at the end, growing as needed. On error nothing was added.
    fn kv_append(&self, kv: &mut Self::Kv, k: &Self::Tensor, v: &Self::Tensor) -> Result<()>;
    /// Drops all rows but a range; cannot fail. Memory stays bounded by about twice the rows that are kept.
    fn kv_keep(&self, kv: &mut Self::Kv, rows: Range<usize>);
    /// An independent copy.
    fn kv_fork(&self, kv: &Self::Kv) -> Result<Self::Kv>;
    /// Bytes held, spare capacity included.
    fn kv_bytes(&self, kv: &Self::Kv) -> usize;

    // Fused operations with composite defaults.

    /// `silu(gate(x)) * up(x)`.
    fn swiglu(
        &self,
        gate: &Self::Weight,
        up: &Self::Weight,
        x: &Self::Tensor,
    ) -> Result<Self::Tensor> {
        fallback::swiglu(self, gate, up, x)
    }
    /// `rms_norm(x, weight) * silu(gate)`, all `[1, rows, heads, dim]`.
    fn gated_rms_norm(
        &self,
        x: &Self::Tensor,
        gate: &Self::Tensor,
        weight: &Self::Tensor,
        eps: f32,
    ) -> Result<Self::Tensor> {
        fallback::gated_rms_norm(self, x, gate, weight, eps)
    }
    /// Depthwise causal convolution and silu. Row t of `[1, rows, channels]` sees itself and the `taps - 1` rows before it, the
    /// first of them in `window` `[1, taps - 1, channels]`. `kernel` is `[taps, channels]`, the last tap for the row itself.
    fn short_conv(
        &self,
        window: &Self::Tensor,
        rows: &Self::Tensor,
        kernel: &Self::Tensor,
    ) -> Result<Self::Tensor> {
        fallback::short_conv(self, window, rows, kernel)
    }
    /// The gated delta rule over rows, one after another.
    ///
    /// `state` `[value_heads, value_dim, key_dim]` float32; `mixed` `[1, rows, channels]` = q | k | v after convolution;
    /// `decay`, `strength` `[1, rows, value_heads]` are the raw a and b projections. Returns `[1, rows, value_heads, value_dim]`
    /// and the state after the rows. Running rows in two calls gives the same as in one: at the exact level bit for bit.
    fn gated_delta(
        &self,
        state: &Self::Tensor,
        mixed: &Self::Tensor,
        decay: &Self::Tensor,
        strength: &Self::Tensor,
        params: &DeltaParams<Self::Tensor>,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        fallback::gated_delta(self, state, mixed, decay, strength, params)
    }
    /// The state of [`gated_delta`](Self::gated_delta) alone, for replaying recorded rows.
    fn gated_delta_state(
        &self,
        state: &Self::Tensor,
        mixed: &Self::Tensor,
        decay: &Self::Tensor,
        strength: &Self::Tensor,
        params: &DeltaParams<Self::Tensor>,
    ) -> Result<Self::Tensor> {
        let (_, state) = self.gated_delta(state, mixed, decay, strength, params)?;
        Ok(state)
    }
    /// DFlash 2's short dynamic convolution of block rows `y` `[1, rows, dim]` (DFlash 2 release notes):
    /// row t = Σ_j (`base[j]` + `dynamic[t, j]` repeated over its group) · `y[t - j]`, rows before the block are 0.
    /// `base` `[taps, dim]`, `dynamic` `[1, rows, taps, groups]`.
    fn dynamic_conv(
        &self,
        y: &Self::Tensor,
        base: &Self::Tensor,
        dynamic: &Self::Tensor,
    ) -> Result<Self::Tensor> {
        fallback::dynamic_conv(self, y, base, dynamic)
    }
    /// Mixture of experts: router `logits` `[1, rows, experts]`, softmax over all, the `top_k` largest, their weighted SwiGLU outputs.
    /// A row's experts are summed in that row's own order, best first.
    fn moe(
        &self,
        x: &Self::Tensor,
        logits: &Self::Tensor,
        experts: &Self::Experts,
        params: &MoeParams,
    ) -> Result<Self::Tensor>;

    // From logits to tokens.

    /// Proposes a token per row of `logits` `[1, slots, vocab]`: DFlash 1.
    fn propose(&self, logits: &Self::Tensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        fallback::propose(self, logits, rule)
    }
    /// Walks DFlash 2's candidate selector: each slot's `top_k` tokens are scored with the token chosen in the slot before.
    /// `hidden` `[1, slots, rank]` is the selector's projection of the slots' rows.
    fn path_select(
        &self,
        logits: &Self::Tensor,
        hidden: &Self::Tensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        fallback::path_select(self, logits, hidden, path, rule)
    }
    /// Draws the rows of `logits` `[1, rows, vocab]` in order up to the first that disagrees with the draft, and reads
    /// choices and draft back at once. `Err(row)` inside the result: that row is not finite.
    fn draw(
        &self,
        logits: &Self::Tensor,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        fallback::draw(self, logits, draft, rule)
    }
}
