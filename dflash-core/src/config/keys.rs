//! The keys that a reader may leave unread: one table per kind of file.
//!
//! A key is in a table only when it changes nothing that this crate computes. Keys in no table
//! become a note, so that a new one is seen.

use super::json::Section;

/// Bookkeeping of the library that wrote the file, common to targets and drafts.
const BOOKKEEPING: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "use_return_dict",
];

/// Keys of targets: training, parallel execution, vision, multi-token prediction.
const TARGET: &[&str] = &[
    "audio_config",
    "audio_token_id",
    "image_token_id",
    "image_token_index",
    "language_model_only",
    "mamba_ssm_dtype",
    "mlp_only_layers",
    "decoder_sparse_step",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "output_router_logits",
    "pretraining_tp",
    "router_aux_loss_coef",
    "use_sliding_window",
    "video_token_id",
    "video_token_index",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "vision_start_token_id",
    "vision_token_id",
];

/// Keys of drafts: copied from the target's family, without meaning for a draft.
const DRAFT: &[&str] = &[
    "bos_token_id",
    "eos_token_id",
    "model_type",
    "pretraining_tp",
    "tie_word_embeddings",
    "target_model",
    "target_model_name_or_path",
];

/// Keys of `generation_config.json` that plain and sampled decoding do not need.
const GENERATION: &[&str] = &[
    "_from_model_config",
    "bos_token_id",
    "cache_implementation",
    "max_length",
    "max_new_tokens",
    "pad_token_id",
    "transformers_version",
    "trust_remote_code",
    "use_cache",
];

/// Keys that change the numbers of other model families, with the value that changes nothing.
/// A target that sets one to anything else is refused.
pub(super) const REFUSED: &[(&str, Neutral)] = &[
    ("alibi", Neutral::Off),
    ("attention_chunk_size", Neutral::Off),
    ("attention_multiplier", Neutral::Off),
    ("attn_logit_softcapping", Neutral::Off),
    ("attn_temperature_tuning", Neutral::Off),
    ("clip_qkv", Neutral::Off),
    ("cross_attention_layers", Neutral::Off),
    ("embedding_multiplier", Neutral::One),
    ("embedding_scale", Neutral::One),
    ("final_logit_softcapping", Neutral::Off),
    ("input_embedding_scale", Neutral::One),
    ("logit_scale", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("no_rope_layer_interval", Neutral::Off),
    ("no_rope_layers", Neutral::Off),
    ("output_multiplier", Neutral::One),
    ("query_pre_attn_scalar", Neutral::Off),
    ("residual_multiplier", Neutral::One),
    ("rope_interleaved", Neutral::Off),
    ("rope_local_base_freq", Neutral::Off),
    ("rope_traditional", Neutral::Off),
    ("use_bidirectional_attention", Neutral::Off),
];

/// The value of a refused key that changes nothing.
#[derive(Debug, Clone, Copy)]
pub(super) enum Neutral {
    /// Absent, `false`, 0 or an empty list.
    Off,
    /// Absent or 1.
    One,
}

/// How many unknown keys get a note of their own.
const MAX_NAMED: usize = 64;

/// The kinds of files that have a table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Target,
    Draft,
    Generation,
}

/// Notes about the keys of `section` that were neither read nor known to change nothing.
pub(super) fn unknown_key_notes(
    section: &Section<'_>,
    kind: Kind,
    known: impl Fn(&str) -> bool,
) -> Vec<String> {
    let table = match kind {
        Kind::Target => TARGET,
        Kind::Draft => DRAFT,
        Kind::Generation => GENERATION,
    };
    let common = if matches!(kind, Kind::Generation) {
        &[]
    } else {
        BOOKKEEPING
    };
    let mut notes = Vec::new();
    let mut unknown = section.unread();
    unknown.retain(|key| !(table.contains(key) || common.contains(key) || known(key)));
    let named = unknown.len().min(MAX_NAMED);
    for key in &unknown[..named] {
        let name = section.dotted(key);
        notes.push(match *key {
            "auto_map" | "model_file" | "trust_remote_code" => {
                format!("`{name}` names Python code; it is never executed")
            }
            _ => format!("`{name}` is not a key that this reader knows; it is ignored"),
        });
    }
    if unknown.len() > named {
        notes.push(format!(
            "{} more keys are not known and are ignored",
            unknown.len() - named
        ));
    }
    notes
}
