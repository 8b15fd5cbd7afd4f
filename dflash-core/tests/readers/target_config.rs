//! Targets: places, family rules, refusals.

use std::path::Path;

use dflash_core::config::{Architecture, GenerationConfig, Mixer, RopeScaling, TargetConfig};
use dflash_core::{Error, PairingCheck};
use serde_json::{Value, json};

use super::support::{Changes, assert_noted, assert_says, target, target_json};

const NULL: Value = Value::Null;
const FAMILIES: [&str; 7] = [
    "llama",
    "mistral",
    "qwen3",
    "qwen3_moe",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
];

#[test]
fn every_family_loads_without_notes() {
    for family in FAMILIES {
        let config = target(family, &[]).unwrap_or_else(|e| panic!("{family}: {e}"));
        assert!(config.notes.is_empty(), "{family}: {:?}", config.notes);
        assert_eq!(config.model_type, family);
    }
}

#[test]
fn other_architectures_are_refused_with_the_list() {
    for family in ["gemma3_text", "gpt2", "qwen2", "qwen3_next", "LLAMA", ""] {
        let error = target(family, &[]).expect_err("unsupported");
        assert_eq!(error.code(), "E-UNSUPPORTED");
        assert_says(
            &error,
            &[family, "llama, qwen3, qwen3_moe, qwen3_5, qwen3_5_moe"],
        );
    }
    assert_says(
        &target("llama", &[("model_type", NULL)]).expect_err("absent"),
        &["model_type", "missing"],
    );
    let window = target("mistral", &[("sliding_window", json!(4096))]).expect_err("slides");
    assert_says(&window, &["mistral", "sliding_window"]);
    assert_eq!(
        target("mistral", &[]).expect("no window").architecture,
        Architecture::Llama
    );
}

#[test]
fn the_text_part_of_a_wrapper_is_read() {
    let wrap = |outer: &str, inner: &str, more: Value| {
        let mut outer = json!({"model_type": outer, "vision_config": {}, "image_token_id": 7});
        outer["text_config"] = serde_json::from_slice(&target_json(inner, &[])).expect("JSON");
        for (k, v) in more.as_object().expect("object") {
            outer[k] = v.clone();
        }
        TargetConfig::parse(Path::new("c"), &serde_json::to_vec(&outer).expect("JSON"))
    };
    let config = wrap(
        "qwen3_5",
        "qwen3_5_text",
        json!({"tie_word_embeddings": true, "eos_token_id": [5, 6]}),
    )
    .expect("valid");
    assert_eq!(
        (config.architecture, config.tie_word_embeddings),
        (Architecture::Qwen35, Some(true))
    );
    assert_eq!(config.eos_token_ids, [5, 6]);
    assert!(config.notes.is_empty(), "{:?}", config.notes);
    let repeated = wrap(
        "qwen3_5",
        "qwen3_5_text",
        json!({"hidden_size": 32, "head_dim": 9}),
    )
    .expect("valid");
    assert_eq!(repeated.attention.head_dim, 8);
    assert_eq!(
        repeated.notes.len(),
        1,
        "an equal copy is no news: {:?}",
        repeated.notes
    );
    assert_noted(&repeated.notes, &["head_dim"]);
    assert_says(
        &wrap("qwen3_5_moe", "qwen3_5_text", json!({})).expect_err("contradiction"),
        &["contradicts"],
    );
    assert_says(
        &wrap("llava", "llama", json!({})).expect_err("unknown wrapper"),
        &["llava"],
    );
}

#[test]
fn layer_kinds_of_hybrids() {
    let mixers = |changes: Changes<'_>| {
        target("qwen3_5_text", changes).map(|c| {
            (
                c.layers.iter().map(|l| l.mixer).collect::<Vec<_>>(),
                c.notes,
            )
        })
    };
    let (d, f) = (Mixer::GatedDelta, Mixer::Full);
    assert_eq!(mixers(&[]).expect("interval").0, [d, d, d, f]);
    let types = json!([
        "linear_attention",
        "full_attention",
        "linear_attention",
        "full_attention"
    ]);
    let listed = [
        ("layer_types", types.clone()),
        ("full_attention_interval", NULL),
    ];
    assert_eq!(mixers(&listed).expect("list").0, [d, f, d, f]);
    assert_eq!(
        mixers(&[
            ("layer_types", types.clone()),
            ("full_attention_interval", json!(2))
        ])
        .expect("both")
        .0,
        [d, f, d, f]
    );
    assert_says(
        &mixers(&[("layer_types", types)]).expect_err("they differ"),
        &["layer_types", "full_attention_interval"],
    );
    let (found, notes) = mixers(&[("full_attention_interval", NULL)]).expect("the default");
    assert_eq!(found, [d, d, d, f]);
    assert_noted(&notes, &["full_attention_interval", "default"]);
    assert!(mixers(&[("layer_types", json!(vec!["sliding_attention"; 4]))]).is_err());
    assert!(mixers(&[("layer_types", json!(vec!["full_attention"; 3]))]).is_err());
}

#[test]
fn shapes_of_hybrids_are_required() {
    for key in [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "head_dim",
        "num_key_value_heads",
    ] {
        assert_says(
            &target("qwen3_5_text", &[(key, NULL)]).expect_err("absent"),
            &[key, "missing"],
        );
    }
    let config = target("qwen3_5_text", &[]).expect("valid");
    assert_eq!(
        config.gated_delta.map(|g| g.conv_channels()),
        Some(2 * 2 * 8 + 4 * 8)
    );
    assert_eq!(config.attention.rope.dims, 2, "a quarter of 8");
    assert_says(
        &target("qwen3_5_text", &[("linear_num_value_heads", json!(3))]).expect_err("3 of 2"),
        &["linear_num_value_heads"],
    );
    assert_says(
        &target("qwen3_5_text", &[("attn_output_gate", json!(false))]).expect_err("no gate"),
        &["attn_output_gate"],
    );
    assert_says(
        &target("qwen3_5_text", &[("partial_rotary_factor", json!(0.1))]).expect_err("0 features"),
        &["partial_rotary_factor"],
    );
    let nested = [(
        "rope_parameters",
        json!({"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5}),
    )];
    let rope = target("qwen3_5_text", &nested).expect("nested wins");
    assert_eq!(
        (rope.attention.rope.theta, rope.attention.rope.dims),
        (7.0, 4)
    );
    assert_eq!(
        rope.notes.len(),
        2,
        "both disagree with the flat keys: {:?}",
        rope.notes
    );
}

#[test]
fn sliding_layers_follow_each_familys_rule() {
    let mixers = |family: &str, changes: Changes<'_>| {
        target(family, changes).map(|c| {
            (
                c.layers.iter().map(|l| l.mixer).collect::<Vec<_>>(),
                c.notes,
            )
        })
    };
    let (s, f) = (Mixer::Sliding { window: 6 }, Mixer::Full);
    let types = (
        "layer_types",
        json!([
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "full_attention"
        ]),
    );
    let (window, on) = (
        ("sliding_window", json!(6)),
        ("use_sliding_window", json!(true)),
    );
    let all = [types.clone(), window.clone(), on.clone()];
    assert_eq!(mixers("qwen3", &all).expect("slides").0, [s, f, s, f]);
    assert_eq!(
        mixers("llama", &[types.clone(), window.clone()])
            .expect("slides")
            .0,
        [s, f, s, f]
    );
    let (off, notes) = mixers("qwen3", &[types.clone(), window.clone()]).expect("not switched on");
    assert_eq!(off, [f; 4]);
    assert_noted(&notes, &["use_sliding_window"]);
    assert_says(
        &mixers("qwen3", &[types, on.clone()]).expect_err("no window"),
        &["sliding_window"],
    );
    let by_count = [window.clone(), on.clone(), ("max_window_layers", json!(3))];
    assert_eq!(
        mixers("qwen3", &by_count).expect("Qwen3's own rule").0,
        [f, f, f, s]
    );
    assert_says(
        &mixers("qwen3", &[window.clone(), on.clone()]).expect_err("no count"),
        &["max_window_layers"],
    );
    let (unused, notes) = mixers("llama", std::slice::from_ref(&window)).expect("no layer slides");
    assert_eq!(unused, [f; 4]);
    assert_noted(&notes, &["sliding_window"]);
    assert_says(
        &mixers("qwen3_moe", &[window, on]).expect_err("ambiguous"),
        &["qwen3_moe", "use_sliding_window"],
    );
}

#[test]
fn experts_by_family() {
    let sparse = |changes: Changes<'_>| {
        target("qwen3_moe", changes).map(|c| c.layers.iter().map(|l| l.sparse).collect::<Vec<_>>())
    };
    assert_eq!(sparse(&[]).expect("all"), [true; 4]);
    assert_eq!(
        sparse(&[("decoder_sparse_step", json!(2))]).expect("every second"),
        [false, true, false, true]
    );
    assert_eq!(
        sparse(&[("mlp_only_layers", json!([1]))]).expect("but one"),
        [true, false, true, true]
    );
    assert_eq!(
        sparse(&[("num_experts", json!(0)), ("num_experts_per_tok", NULL)]).expect("none"),
        [false; 4]
    );
    for key in [
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
    ] {
        assert_says(
            &target("qwen3_moe", &[(key, NULL)]).expect_err("absent"),
            &[key, "missing"],
        );
    }
    assert_says(
        &target("qwen3_moe", &[("num_experts_per_tok", json!(5))]).expect_err("5 of 4"),
        &["num_experts_per_tok"],
    );
    assert_says(
        &target("qwen3_5_moe", &[("shared_expert_intermediate_size", NULL)]).expect_err("absent"),
        &["shared_expert_intermediate_size"],
    );
    let unsaid = target(
        "qwen3_5_moe",
        &[("norm_topk_prob", NULL), ("intermediate_size", NULL)],
    )
    .expect("family default");
    assert_eq!(unsaid.moe.map(|m| m.norm_topk), Some(true));
    assert_says(
        &target("qwen3", &[("num_experts", json!(4))]).expect_err("dense family"),
        &["num_experts", "qwen3_moe"],
    );
    assert_says(
        &target(
            "qwen3_moe",
            &[("mlp_only_layers", json!([0])), ("intermediate_size", NULL)],
        )
        .expect_err("a dense layer"),
        &["intermediate_size"],
    );
}

#[test]
fn defaults_of_llama_only() {
    let sparse_keys = [
        ("num_key_value_heads", NULL),
        ("head_dim", NULL),
        ("rope_theta", NULL),
    ];
    let config = target("llama", &sparse_keys).expect("defaults");
    assert_eq!(
        (
            config.attention.kv_heads,
            config.attention.head_dim,
            config.attention.rope.theta
        ),
        (4, 8, 1e4)
    );
    assert_noted(&config.notes, &["rope_theta", "default"]);
    for key in ["num_key_value_heads", "head_dim", "rope_theta"] {
        assert_says(
            &target("qwen3", &[(key, NULL)]).expect_err("absent"),
            &[key, "missing"],
        );
    }
    let odd = target(
        "llama",
        &[
            ("head_dim", NULL),
            ("num_attention_heads", json!(5)),
            ("num_key_value_heads", json!(5)),
        ],
    );
    assert_says(&odd.expect_err("32 by 5"), &["head_dim"]);
    let nested = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64});
    let config = target(
        "llama",
        &[("rope_parameters", nested), ("rope_theta", NULL)],
    )
    .expect("nested only");
    assert_eq!(config.attention.rope.theta, 5e5);
    assert!(matches!(
        config.attention.rope.scaling,
        RopeScaling::Llama3 {
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            ..
        }
    ));
    assert_eq!(
        config.notes.len(),
        2,
        "both factors were defaults: {:?}",
        config.notes
    );
}

#[test]
fn keys_that_would_change_the_numbers_are_refused() {
    for (key, value) in [
        ("hidden_act", json!("gelu_pytorch_tanh")),
        ("hidden_act", json!(3)),
        ("rope_traditional", json!(true)),
        ("final_logit_softcapping", json!(30.0)),
        ("attn_logit_softcapping", json!(50.0)),
        ("embedding_multiplier", json!(12.0)),
        ("residual_multiplier", json!(0.22)),
        ("logits_scaling", json!(8)),
        ("query_pre_attn_scalar", json!(256)),
        ("no_rope_layers", json!([0, 1])),
        ("partial_rotary_factor", json!(0.5)),
    ] {
        assert_says(
            &target("qwen3", &[(key, value)]).expect_err("refused"),
            &[key],
        );
    }
    assert_says(
        &target("qwen3", &[("mlp_bias", json!(true))]).expect_err("no such bias"),
        &["mlp_bias"],
    );
    assert!(
        target("llama", &[("mlp_bias", json!(true))])
            .expect("has them")
            .mlp_bias
    );
    for (key, value) in [
        ("embedding_multiplier", json!(1.0)),
        ("final_logit_softcapping", json!(0)),
        ("no_rope_layers", json!([])),
    ] {
        let config = target("qwen3", &[(key, value)]).expect("neutral");
        assert!(config.notes.is_empty(), "{:?}", config.notes);
    }
    let unknown = target(
        "qwen3",
        &[
            ("surprise", json!({})),
            ("auto_map", json!({})),
            ("torch_dtype", json!("bfloat16")),
        ],
    );
    let notes = unknown.expect("ignored").notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_noted(&notes, &["auto_map", "never executed"]);
}

#[test]
fn wrong_types_and_sizes_are_named() {
    for key in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    ] {
        for bad in [
            json!("1"),
            json!(true),
            json!([]),
            json!(-1),
            json!(u64::MAX),
        ] {
            assert_says(
                &target("qwen3", &[(key, bad)]).expect_err("refused"),
                &[key],
            );
        }
        assert_says(
            &target("qwen3", &[(key, NULL)]).expect_err("absent"),
            &[key],
        );
    }
    assert_says(
        &target("qwen3", &[("num_hidden_layers", json!(1_000_000))]).expect_err("absurd"),
        &["num_hidden_layers"],
    );
    assert_says(
        &target("qwen3", &[("num_key_value_heads", json!(3))]).expect_err("3 of 4"),
        &["num_key_value_heads"],
    );
    assert_says(
        &target("qwen3", &[("head_dim", json!(7))]).expect_err("odd"),
        &["head_dim"],
    );
    assert_says(
        &target("qwen3", &[("eos_token_id", json!("</s>"))]).expect_err("text"),
        &["eos_token_id"],
    );
}

#[test]
fn end_tokens_and_the_generation_file() {
    let ids = |value| {
        target("qwen3", &[("eos_token_id", value)])
            .expect("valid")
            .eos_token_ids
    };
    assert_eq!(ids(json!(7)), [7]);
    assert_eq!(ids(json!([7, 8])), [7, 8]);
    assert!(ids(NULL).is_empty());
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(
        folder.path().join("config.json"),
        target_json("qwen3", &[("eos_token_id", json!(7))]),
    )
    .expect("written");
    let read = || {
        TargetConfig::read(folder.path())
            .expect("valid")
            .eos_token_ids
    };
    assert_eq!(read(), [7], "there is no generation_config.json");
    assert_eq!(GenerationConfig::read(folder.path()).expect("absent"), None);
    let path = folder.path().join("generation_config.json");
    std::fs::write(&path, r#"{"eos_token_id": [1, 2]}"#).expect("written");
    assert_eq!(read(), [1, 2]);
    std::fs::write(&path, r#"{"eos_token_id": []}"#).expect("written");
    assert_eq!(read(), [7], "an empty list replaces nothing");
}

#[test]
fn missing_folders_and_drafts() {
    let error = TargetConfig::read(Path::new("/nowhere/at/all")).expect_err("missing");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let empty = tempfile::tempdir().expect("folder");
    assert!(matches!(
        TargetConfig::read(empty.path()),
        Err(Error::Io { .. })
    ));
    for draft in [
        ("architectures", json!(["DFlash2DraftModel"])),
        ("dflash_config", json!({})),
        ("target_layer_ids", json!([1])),
    ] {
        let error = target("qwen3", &[draft]).expect_err("a draft");
        assert!(
            matches!(
                error,
                Error::Pairing {
                    check: PairingCheck::Role,
                    ..
                }
            ),
            "{error}"
        );
    }
}
