//! Whatever the bytes are: an answer, never a panic, never more memory than the file justifies.

use std::path::Path;

use dflash_core::checkpoint::{Bytes, Checkpoint};
use dflash_core::config::{DraftConfig, GenerationConfig, TargetConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{draft_json, safetensors, target_json};

/// Reads `bytes` with every reader; what counts is that each comes back.
fn read_everything(bytes: &[u8]) {
    let path = Path::new("config.json");
    let target = TargetConfig::parse(path, bytes);
    let draft = DraftConfig::parse(path, bytes, true);
    // An accepted configuration can be computed with.
    if let Ok(target) = &target {
        assert!(target.attention.rope.periods().iter().all(|p| *p > 0.0));
        assert!(target.layers.len() <= 4096);
        if let Some(delta) = target.gated_delta {
            assert!(delta.conv_channels() > 0);
        }
    }
    if let Ok(draft) = &draft {
        assert!(draft.rope.periods().iter().all(|p| *p > 0.0) && draft.rope.amplitude() > 0.0);
        assert!((draft.mask_token_id as usize) < draft.vocab_size);
    }
    let _ = GenerationConfig::parse(path, bytes);
}

fn read_checkpoint(file: &[u8]) -> bool {
    let Ok(checkpoint) = Checkpoint::from_bytes("made", Bytes::copied(file)) else {
        return false;
    };
    assert!(checkpoint.total_bytes() <= file.len());
    for name in checkpoint.names().map(str::to_owned).collect::<Vec<_>>() {
        let tensor = checkpoint.tensor(&name).expect("listed");
        let _ = (tensor.first_non_finite_row(), tensor.to_f32());
    }
    let target = TargetConfig::parse(Path::new("c"), &target_json("qwen3", &[])).expect("valid");
    if let Ok(mut claims) = checkpoint.claims_for(&target) {
        let _ = claims.weight("embed_tokens", 2, 4);
        let _ = claims.head_is_tied(None);
        let _ = claims.finish();
    }
    true
}

fn small_file() -> Vec<u8> {
    safetensors(&[
        ("model.embed_tokens.weight", "BF16", &[2, 4]),
        (
            "model.layers.0.linear_attn.conv1d.weight",
            "F32",
            &[3, 1, 4],
        ),
        ("lm_head.weight", "F16", &[2, 4]),
    ])
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let file = small_file();
    assert!(read_checkpoint(&file));
    for length in 0..file.len() {
        assert!(
            !read_checkpoint(&file[..length]),
            "accepted {length} of {} bytes",
            file.len()
        );
    }
}

#[test]
fn configurations_cut_anywhere_are_errors() {
    for json in [draft_json(&[]), target_json("qwen3_5_moe", &[])] {
        read_everything(&json);
        for length in 0..json.len() {
            let path = Path::new("c");
            assert!(TargetConfig::parse(path, &json[..length]).is_err());
            assert!(DraftConfig::parse(path, &json[..length], false).is_err());
        }
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    read_everything(format!(r#"{{"model_type": {deep}}}"#).as_bytes());
    let header = format!(r#"{{"a": {deep}}}"#);
    let file = [
        (header.len() as u64).to_le_bytes().to_vec(),
        header.into_bytes(),
    ]
    .concat();
    assert!(!read_checkpoint(&file));
}

/// Values that readers have tripped over.
fn hostile_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-3_i64..70).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![
            Just("yarn"),
            Just("linear"),
            Just("llama3"),
            Just("default"),
            Just("full_attention"),
            Just("sliding_attention"),
            Just("linear_attention"),
            Just("qwen3"),
            Just("qwen3_5"),
            Just("qwen3_moe"),
            Just("llama"),
            Just("DFlash2DraftModel"),
            Just(""),
        ]
        .prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((key(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Keys that some reader reads, at either level.
fn key() -> impl Strategy<Value = String> {
    const KEYS: &[&str] = &[
        "architectures",
        "model_type",
        "text_config",
        "dflash_config",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "rope_scaling",
        "rope_type",
        "type",
        "factor",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "max_position_embeddings",
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "full_attention_interval",
        "block_size",
        "target_layer_ids",
        "mask_token_id",
        "num_target_layers",
        "is_causal",
        "causal",
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
        "output_multiplier",
        "input_embedding_scale",
        "final_logit_softcapping",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "quantization",
        "quantization_config",
        "bits",
        "group_size",
        "mode",
        "quant_method",
        "eos_token_id",
        "bos_token_id",
        "tie_word_embeddings",
        "temperature",
        "top_p",
        "top_k",
    ];
    prop_oneof![9 => proptest::sample::select(KEYS).prop_map(str::to_owned), 1 => ".{0,8}"]
}

fn base() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(draft_json(&[])),
        Just(draft_json(&[(
            "architectures",
            json!(["DFlash2DraftModel"])
        )])),
        Just(target_json("llama", &[])),
        Just(target_json("qwen3", &[])),
        Just(target_json("qwen3_moe", &[])),
        Just(target_json("qwen3_5_moe", &[])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(512), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_everything(&bytes);
        read_checkpoint(&bytes);
    }

    #[test]
    fn random_headers(header in ".{0,200}", data in 0_usize..64) {
        read_checkpoint(&super::support::raw_safetensors(&header, data));
    }

    #[test]
    fn flipped_bits_of_a_file(flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0_u8..8), 1..4)) {
        let mut file = small_file();
        for (at, bit) in flips {
            let at = at.index(file.len());
            file[at] ^= 1 << bit;
        }
        read_checkpoint(&file);
    }

    #[test]
    fn a_valid_configuration_with_hostile_values(base in base(), changes in proptest::collection::vec((key(), hostile_value()), 1..4)) {
        let mut config: Value = serde_json::from_slice(&base).expect("JSON");
        for (key, value) in changes {
            config[key] = value;
        }
        read_everything(&serde_json::to_vec(&config).expect("JSON"));
        let nested = json!({"model_type": config["model_type"], "text_config": config});
        read_everything(&serde_json::to_vec(&nested).expect("JSON"));
    }

    #[test]
    fn hostile_indices(map in hostile_value(), name in ".{0,12}") {
        let folder = tempfile::tempdir().expect("folder");
        let write = |file: &str, content: &[u8]| std::fs::write(folder.path().join(file), content).expect("written");
        write("model.safetensors", &small_file());
        for map in [map, json!({"lm_head.weight": name})] {
            let accepted = name == "model.safetensors" || map == json!({"lm_head.weight": "model.safetensors"});
            write("model.safetensors.index.json", &serde_json::to_vec(&json!({"weight_map": map})).expect("JSON"));
            prop_assert!(Checkpoint::open(folder.path()).is_err() || accepted);
        }
    }
}
