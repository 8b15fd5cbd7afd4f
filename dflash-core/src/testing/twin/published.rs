//! The published pairs, by what their configs say of shapes.

use serde_json::{Value, json};

use super::TwinOptions;
use crate::{Error, Result};

/// The pairs that have a twin.
pub const NAMES: [&str; 5] = [
    "qwen3-8b",
    "llama-3.1-8b",
    "qwen3.5-9b",
    "qwen3.8-27b",
    "qwen3.5-35b-a3b",
];

/// Sizes of a pair. What is zero is not there.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    /// Key and value heads of gated-delta layers.
    delta_heads: [usize; 2],
    experts: usize,
    expert_size: usize,
    draft_layers: usize,
    draft_intermediate: usize,
    draft_heads: [usize; 2],
    block: usize,
    mask: usize,
    selector_rank: usize,
}

fn sizes(name: &str) -> Option<Sizes> {
    let plain = Sizes {
        hidden: 4096,
        intermediate: 12_288,
        layers: 36,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 151_936,
        draft_layers: 5,
        draft_intermediate: 12_288,
        draft_heads: [32, 8],
        block: 16,
        mask: 151_669,
        ..Sizes::default()
    };
    let hybrid = Sizes {
        layers: 32,
        heads: 16,
        kv_heads: 4,
        head_dim: 256,
        vocab: 248_320,
        delta_heads: [16, 32],
        mask: 248_070,
        ..plain
    };
    Some(match name {
        "qwen3-8b" => plain,
        "llama-3.1-8b" => Sizes {
            intermediate: 14_336,
            layers: 32,
            vocab: 128_256,
            draft_intermediate: 14_336,
            block: 10,
            mask: 128_002,
            ..plain
        },
        "qwen3.5-9b" => hybrid,
        "qwen3.8-27b" => Sizes {
            hidden: 5120,
            intermediate: 17_408,
            layers: 64,
            heads: 24,
            delta_heads: [16, 48],
            draft_intermediate: 17_408,
            selector_rank: 256,
            ..hybrid
        },
        "qwen3.5-35b-a3b" => Sizes {
            hidden: 2048,
            layers: 40,
            kv_heads: 2,
            experts: 256,
            expert_size: 512,
            draft_intermediate: 6144,
            ..hybrid
        },
        _ => return None,
    })
}

impl Sizes {
    /// The same heads, fewer of them, and everything else small.
    fn tiny(self) -> Self {
        let few = |n: usize, most: usize| n.min(most);
        Self {
            hidden: 256,
            intermediate: 384,
            heads: self.heads / self.kv_heads * few(self.kv_heads, 2) / 2,
            kv_heads: few(self.kv_heads, 2) / 2,
            vocab: 1024,
            delta_heads: self.delta_heads.map(|n| n / 8),
            experts: few(self.experts, 16),
            expert_size: few(self.expert_size, 128),
            draft_layers: 2,
            draft_intermediate: 320,
            draft_heads: [4, 1],
            mask: 1000,
            selector_rank: few(self.selector_rank, 64),
            ..self
        }
    }
}

/// The configs of target and draft; `None` for an unknown name.
pub(super) fn pair(name: &str, options: &TwinOptions) -> Option<Result<(Value, Value)>> {
    let name = name.to_ascii_lowercase();
    let mut s = sizes(&name)?;
    if options.tiny {
        s = s.tiny();
    }
    s.layers = options.layers.unwrap_or(s.layers);
    if s.layers == 0 {
        let reason = "0 is out of range, expected at least 1";
        return Some(Err(Error::request("layers", reason)));
    }
    Some(Ok((target(&name, &s), draft(&name, &s))))
}

fn target(name: &str, s: &Sizes) -> Value {
    let mut config = json!({
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "attention_bias": false,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": false,
        "eos_token_id": 2,
    });
    if s.delta_heads[0] == 0 {
        let (kind, class) = match name.starts_with("llama") {
            true => ("llama", "LlamaForCausalLM"),
            false => ("qwen3", "Qwen3ForCausalLM"),
        };
        config["architectures"] = json!([class]);
        config["model_type"] = json!(kind);
        config["rope_theta"] = json!(1_000_000.0);
        if kind == "llama" {
            config["rope_theta"] = json!(500_000.0);
            config["rms_norm_eps"] = json!(1e-5);
            config["max_position_embeddings"] = json!(131_072);
            config["rope_scaling"] = json!({
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            });
        }
        return config;
    }
    let layer = |i: usize| {
        if i % 4 == 3 {
            "full_attention"
        } else {
            "linear_attention"
        }
    };
    config["layer_types"] = (0..s.layers).map(layer).collect();
    config["max_position_embeddings"] = json!(262_144);
    config["rope_parameters"] = json!({
        "rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25,
        "mrope_interleaved": true, "mrope_section": [11, 11, 10],
    });
    config["linear_conv_kernel_dim"] = json!(4);
    config["linear_key_head_dim"] = json!(128);
    config["linear_value_head_dim"] = json!(128);
    config["linear_num_key_heads"] = json!(s.delta_heads[0]);
    config["linear_num_value_heads"] = json!(s.delta_heads[1]);
    let (kind, class) = match s.experts {
        0 => ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        _ => ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
    };
    if s.experts > 0 {
        config["num_experts"] = json!(s.experts);
        config["num_experts_per_tok"] = json!(8);
        config["moe_intermediate_size"] = json!(s.expert_size);
        config["shared_expert_intermediate_size"] = json!(s.expert_size);
        config
            .as_object_mut()
            .map(|c| c.remove("intermediate_size"));
    }
    config["model_type"] = json!(format!("{kind}_text"));
    json!({
        "architectures": [class],
        "model_type": kind,
        "tie_word_embeddings": false,
        "text_config": config,
    })
}

fn draft(name: &str, s: &Sizes) -> Value {
    // Spread over the target's layers, as published ones are.
    let taps = s.layers.min(5);
    let tap = |i: usize| i * (s.layers - 1) / (taps - 1).max(1);
    let theta = match name {
        "llama-3.1-8b" => 500_000.0,
        "qwen3-8b" => 1_000_000.0,
        _ => 10_000_000.0,
    };
    let mut config = json!({
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.draft_intermediate,
        "num_hidden_layers": s.draft_layers,
        "num_attention_heads": s.draft_heads[0],
        "num_key_value_heads": s.draft_heads[1],
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "num_target_layers": s.layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "is_causal": false,
        "dflash_config": {
            "block_size": s.block,
            "mask_token_id": s.mask,
            "target_layer_ids": (0..taps).map(tap).collect::<Vec<_>>(),
        },
    });
    if s.selector_rank > 0 {
        config["architectures"] = json!(["DFlash2DraftModel"]);
        config["use_sliding_window"] = json!(true);
        config["sliding_window"] = json!(2048);
        config["layer_types"] = json!(vec!["sliding_attention"; s.draft_layers]);
        let nested = &mut config["dflash_config"];
        nested["conv_kernel_size"] = json!(2);
        nested["conv_group_size"] = json!(16);
        nested["selector_rank"] = json!(s.selector_rank);
        nested["selector_top_k"] = json!(16);
    }
    config
}
