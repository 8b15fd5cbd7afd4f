//! Small arguments and results of backend operations.

use std::fmt;

use super::Backend;
use crate::config::RopeConfig;

/// What a row of a many-row product equals: how far speculation can change the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exactness {
    /// Bit-equal to the same row computed alone, so tokens are plain decoding's by construction.
    Exact,
    /// Equal up to rounding, so tokens are plain decoding's except at near-ties.
    TieTolerant,
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::TieTolerant => "tie-tolerant",
        })
    }
}

/// How a backend serves an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Implementation {
    /// By a kernel of its own or of its library.
    Native,
    /// By the default, from several operations.
    Composite,
}

/// The operations whose implementation differs between backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// [`Backend::linear`].
    Linear,
    /// [`Backend::attention`].
    Attention,
    /// [`Backend::swiglu`].
    Swiglu,
    /// [`Backend::norm_rope`].
    NormRope,
    /// [`Backend::gated_rms_norm`].
    GatedRmsNorm,
    /// [`Backend::short_conv`].
    ShortConv,
    /// [`Backend::gated_delta`].
    GatedDelta,
    /// [`Backend::dynamic_conv`].
    DynamicConv,
    /// [`Backend::moe`].
    Moe,
    /// [`Backend::propose`].
    Propose,
    /// [`Backend::path_select`].
    PathSelect,
    /// [`Backend::draw`].
    Draw,
}

impl Op {
    /// All of them, in the order that reports use.
    pub const ALL: [Self; 12] = [
        Self::Linear,
        Self::Attention,
        Self::Swiglu,
        Self::NormRope,
        Self::GatedRmsNorm,
        Self::ShortConv,
        Self::GatedDelta,
        Self::DynamicConv,
        Self::Moe,
        Self::Propose,
        Self::PathSelect,
        Self::Draw,
    ];

    /// The name of the method.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Attention => "attention",
            Self::Swiglu => "swiglu",
            Self::NormRope => "norm_rope",
            Self::GatedRmsNorm => "gated_rms_norm",
            Self::ShortConv => "short_conv",
            Self::GatedDelta => "gated_delta",
            Self::DynamicConv => "dynamic_conv",
            Self::Moe => "moe",
            Self::Propose => "propose",
            Self::PathSelect => "path_select",
            Self::Draw => "draw",
        }
    }
}

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// `e^x`.
    Exp,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `tanh x`.
    Tanh,
}

/// Rotary position embedding of one kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Features that are rotated, the first of each head; even.
    pub dims: usize,
    /// `dims / 2` periods: feature pair i turns by `position / periods[i]` radians.
    pub periods: Vec<f64>,
    /// Factor on the rotated features (yarn's attention factor; 1 otherwise).
    pub amplitude: f32,
}

impl From<&RopeConfig> for RopeSpec {
    fn from(config: &RopeConfig) -> Self {
        Self {
            dims: config.dims,
            periods: config.periods(),
            amplitude: config.amplitude(),
        }
    }
}

/// Sizes of one layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Heads.
    pub heads: usize,
    /// Features per head.
    pub head_dim: usize,
}

/// Keys and values of a block that attention sees beside the cache, `[1, kv_heads, rows, head_dim]`.
#[derive(Debug)]
pub struct Block<'a, T> {
    /// Keys, rotated.
    pub k: &'a T,
    /// Values.
    pub v: &'a T,
    /// What a row sees of its own block.
    pub rule: BlockRule,
}

/// What a row sees of its own block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockRule {
    /// Itself and the rows before it.
    Causal,
    /// All rows.
    Bidirectional,
}

/// Which cache rows a query sees: those at positions up to its own and, with a window, less than `window` before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visibility {
    /// Position of the cache's first row.
    pub first_key: usize,
    /// Position of the first query.
    pub first_query: usize,
    /// The window, if the layer slides.
    pub window: Option<usize>,
}

impl Visibility {
    /// The cache rows that query row `row` sees, of `keys` rows, as indices into the cache.
    pub fn range(&self, row: usize, keys: usize) -> std::ops::Range<usize> {
        let query = self.first_query + row;
        let end = (query + 1).saturating_sub(self.first_key).min(keys);
        let oldest = self.window.map_or(0, |w| (query + 1).saturating_sub(w));
        oldest.saturating_sub(self.first_key).min(end)..end
    }
}

/// Sizes and small tensors of one gated-delta layer.
#[derive(Debug, Clone)]
pub struct DeltaParams<T> {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v; a multiple of `key_heads`. Value head h uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Features per key head.
    pub key_dim: usize,
    /// Features per value head.
    pub value_dim: usize,
    /// Rows that the short convolution sees.
    pub taps: usize,
    /// `A_log` `[value_heads]`, float32.
    pub a_log: T,
    /// `dt_bias` `[value_heads]`, float32.
    pub dt_bias: T,
}

impl<T> DeltaParams<T> {
    /// Channels of the convolution: q | k | v.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// How a mixture of experts routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeParams {
    /// Experts per row.
    pub top_k: usize,
    /// Whether the chosen experts' probabilities are divided by their sum.
    pub normalize: bool,
}

/// DFlash 2's candidate selector.
#[derive(Debug)]
pub struct PathRule<'a, B: Backend> {
    /// Row per token `[vocab, rank]`, read for the token before.
    pub predecessor: &'a B::Weight,
    /// Row per token `[vocab, rank]`, read for the candidates.
    pub successor: &'a B::Weight,
    /// The anchor, predecessor of the first slot.
    pub anchor: u32,
    /// Candidates per slot.
    pub top_k: usize,
}

/// A block's proposals, on the device.
#[derive(Debug, Clone)]
pub struct Drafted<B: Backend> {
    /// One token per slot, `rows` of them.
    pub ids: B::Ids,
    /// Slots.
    pub rows: usize,
    /// `[1]`: 1 if everything that the draft computed is finite, else anything but 1 (a NaN too).
    pub finite: B::Tensor,
    /// Slot 1 by argmax and by the request's noise, when the request samples.
    pub rivals: Option<B::Ids>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_rows_follow_positions() {
        let full = Visibility {
            first_key: 0,
            first_query: 5,
            window: None,
        };
        assert_eq!(full.range(0, 8), 0..6);
        assert_eq!(full.range(2, 8), 0..8);
        let sliding = Visibility {
            first_key: 3,
            first_query: 9,
            window: Some(4),
        };
        // Position 9 sees 6..=9, which are rows 3..=6 of a cache that starts at position 3.
        assert_eq!(sliding.range(0, 8), 3..7);
        assert_eq!(sliding.range(1, 8), 4..8);
        // A query past the cache sees what is left of its window.
        assert_eq!(
            Visibility {
                first_query: 20,
                ..sliding
            }
            .range(0, 8),
            8..8
        );
    }
}
