//! What was loaded, and why so.

use crate::DType;
use crate::backend::{Exactness, Implementation, Op};
use crate::cache::CacheKind;
use crate::draft::Packed;

/// What an engine is made of; every choice with its reason.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// The backend's name.
    pub backend: &'static str,
    /// Why this backend.
    pub backend_reason: String,
    /// The device's name.
    pub device: &'static str,
    /// Format of the target's activations.
    pub dtype: DType,
    /// How far speculation can change the text.
    pub exactness: Exactness,
    /// How far a row's logits may move with the rows that are computed beside it, measured when the target was loaded; `None`
    /// at the exact level, where they do not.
    pub row_rounding: Option<f32>,
    /// Threads on the processor.
    pub threads: usize,
    /// The target as it was asked for.
    pub target: String,
    /// `model_type` of the target.
    pub architecture: String,
    /// Ids below this exist.
    pub vocab_size: usize,
    /// The model's longest sequence.
    pub context: usize,
    /// Ids that end a text.
    pub end_ids: Vec<u32>,
    /// The tensor prefix where the embedding was found.
    pub nest: String,
    /// One entry per layer of the target.
    pub caches: Vec<CacheSummary>,
    /// Bytes of the target's tensors, as stored.
    pub weight_bytes: usize,
    /// The draft, if one is loaded.
    pub draft: Option<DraftSummary>,
    /// How each operation is served.
    pub operations: Vec<(Op, Implementation)>,
    /// Fallbacks, clamps, ignored keys and choices made for a reason.
    pub notes: Vec<String>,
}

/// A layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSummary {
    /// What it is made of.
    pub kind: CacheKind,
    /// Whether committed rows can be taken away again.
    pub can_trim: bool,
}

/// A loaded draft.
#[derive(Debug, Clone)]
pub struct DraftSummary {
    /// As it was asked for.
    pub reference: String,
    /// `dflash` or `dflash2`.
    pub kind: &'static str,
    /// Format of its quantized weights and of its activations, as a spec (`w4a32:gs64`); `None` if no weight is quantized.
    pub quant: Option<String>,
    /// What quantization at load has done, if it was asked for.
    pub packed: Option<Packed>,
    /// Format of its activations.
    pub dtype: DType,
    /// Why that format.
    pub dtype_reason: String,
    /// Trained rows per block, anchor included.
    pub block_size: usize,
    /// Target layers that it listens to.
    pub taps: Vec<usize>,
    /// Bytes of its tensors, as stored.
    pub weight_bytes: usize,
}
