//! The object of `inspect --json`, from which the text is made as well.

use std::collections::BTreeMap;

use serde::Serialize;

/// A model.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    #[serde(rename = "ref")]
    pub(super) reference: String,
    /// `target` or `draft`.
    pub(super) role: &'static str,
    /// The decoder, or the generation of the draft.
    pub(super) architecture: &'static str,
    #[serde(flatten)]
    pub(super) kind: Kind,
    pub(super) quantization: Option<Quantization>,
    pub(super) tensors: Tensors,
    pub(super) tokenizer: Option<Tokens>,
    pub(super) chat_template: Option<Template>,
    pub(super) memory: Vec<Memory>,
    pub(super) notes: Vec<String>,
}

/// What only one of the two has.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Kind {
    Target(Box<Target>),
    Draft(Box<Draft>),
}

#[derive(Debug, Serialize)]
pub(super) struct Target {
    pub(super) model_type: String,
    pub(super) hidden_size: usize,
    pub(super) vocab_size: usize,
    pub(super) context: usize,
    pub(super) layers: Vec<TargetLayer>,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rope_theta: f64,
    pub(super) rope_dims: usize,
    pub(super) experts: Option<Experts>,
    pub(super) end_ids: Vec<u32>,
    pub(super) backends: Vec<Backend>,
    /// What `--backend auto` takes.
    pub(super) picked: Option<Picked>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct TargetLayer {
    /// `full_attention`, `sliding_attention` or `gated_delta`.
    pub(super) kind: &'static str,
    pub(super) window: Option<usize>,
    /// `kv` or `recurrent`.
    pub(super) cache: &'static str,
    /// Whether committed rows can always be taken away again.
    pub(super) can_trim: bool,
    pub(super) experts: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) top_k: usize,
    pub(super) shared: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Backend {
    pub(super) name: &'static str,
    pub(super) devices: Vec<String>,
    /// `native`, `converted` or `refused`.
    pub(super) support: &'static str,
    pub(super) reason: Option<String>,
    pub(super) operations: Operations,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Operations {
    pub(super) native: Vec<&'static str>,
    pub(super) composite: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct Picked {
    pub(super) backend: &'static str,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Draft {
    pub(super) block_size: usize,
    pub(super) taps: Vec<usize>,
    pub(super) mask_token_id: u32,
    pub(super) target_layers: Option<usize>,
    pub(super) hidden_size: usize,
    pub(super) vocab_size: usize,
    pub(super) layers: Vec<DraftLayer>,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rope_theta: f64,
    pub(super) selector: Option<Selector>,
    pub(super) modules: Vec<Module>,
}

/// A kind of tensor in a draft.
#[derive(Debug, Serialize)]
pub(super) struct Module {
    /// `projections`, `norms`, …
    pub(super) kind: &'static str,
    pub(super) tensors: usize,
    pub(super) bytes: usize,
    /// Number formats as in the files, each with its tensors.
    pub(super) formats: BTreeMap<&'static str, usize>,
    /// Whether `--draft-quant` quantizes it.
    pub(super) quantizable: bool,
    /// The groups of `--draft-quant` that fit all its matrices.
    pub(super) groups: Vec<usize>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct DraftLayer {
    pub(super) window: Option<usize>,
    pub(super) causal: bool,
}

/// What only DFlash 2 has.
#[derive(Debug, Serialize)]
pub(super) struct Selector {
    pub(super) conv_taps: usize,
    pub(super) conv_group: usize,
    pub(super) rank: usize,
    pub(super) candidates: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Quantization {
    pub(super) mode: &'static str,
    pub(super) bits: u8,
    pub(super) group: usize,
    /// Modules with an entry of their own.
    pub(super) exceptions: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Tensors {
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) formats: BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) list: Option<Vec<Tensor>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Tokens {
    pub(super) ids: usize,
    pub(super) special: usize,
    pub(super) bos_id: Option<u32>,
    pub(super) eos_id: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct Template {
    pub(super) bytes: usize,
    pub(super) reasoning_switch: bool,
    pub(super) reasoning_levels: bool,
    pub(super) tools: bool,
}

/// Cache bytes of one sequence at a length, in float32 as on the processor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    pub(super) context: usize,
    pub(super) kv_bytes: usize,
    pub(super) recurrent_bytes: usize,
}
