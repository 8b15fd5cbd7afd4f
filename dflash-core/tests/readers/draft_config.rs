//! Every row of the table of draft keys: first place, second place, both, neither.

use dflash_core::config::{DraftConfig, DraftKind, DraftLayer, RopeScaling};
use dflash_core::{Error, PairingCheck};
use serde_json::{Value, json};

use super::support::{Changes, assert_noted, assert_says, draft};

const NULL: Value = Value::Null;

#[test]
fn a_minimal_draft_and_its_defaults() {
    let config = draft(&[]).expect("valid");
    assert_eq!((config.kind, config.dflash2), (DraftKind::DFlash1, None));
    assert_eq!(
        (
            config.block_size,
            config.target_layer_ids.as_slice(),
            config.mask_token_id
        ),
        (8, [1, 3].as_slice(), 99)
    );
    assert_eq!(
        (
            config.input_embedding_scale,
            config.output_multiplier,
            config.softcap
        ),
        (None, 1.0, None)
    );
    assert_eq!(
        (
            config.attention_bias,
            config.num_target_layers,
            config.max_position_embeddings
        ),
        (false, None, None)
    );
    assert_eq!(
        config.layers,
        [DraftLayer {
            window: None,
            causal: false
        }; 2]
    );
    assert_eq!(
        (config.rope.theta, config.rope.dims, &config.rope.scaling),
        (1e6, 8, &RopeScaling::None)
    );
    assert!(config.notes.is_empty(), "{:?}", config.notes);
}

#[test]
fn block_size_taps_and_mask_are_found_in_both_places() {
    let cases: [(&str, Value, Value); 3] = [
        ("block_size", json!(4), json!(6)),
        ("target_layer_ids", json!([0, 2]), json!([2])),
        ("mask_token_id", json!(7), json!(5)),
    ];
    let show = |c: &DraftConfig| {
        format!(
            "{} {:?} {}",
            c.block_size, c.target_layer_ids, c.mask_token_id
        )
    };
    for (key, first, second) in cases {
        let nested = format!("dflash_config.{key}");
        let with_nested = show(&draft(&[(&nested, first.clone())]).expect("nested"));
        let flat = draft(&[(&nested, NULL), (key, first.clone())]).expect("flat");
        assert_eq!(show(&flat), with_nested);
        assert!(flat.notes.is_empty());
        let both = draft(&[(&nested, first.clone()), (key, second)]).expect("both");
        assert_eq!(show(&both), with_nested, "the nested place wins");
        assert_noted(&both.notes, &[key, "disagree"]);
        let same = draft(&[(&nested, first.clone()), (key, first)]).expect("both, equal");
        assert!(same.notes.is_empty());
        assert_says(
            &draft(&[(&nested, NULL)]).expect_err("absent"),
            &[key, "missing"],
        );
    }
}

#[test]
fn a_block_needs_two_rows() {
    assert!(draft(&[("dflash_config.block_size", json!(2))]).is_ok());
    for size in [
        json!(0),
        json!(1),
        json!(-1),
        json!("8"),
        json!(8.0),
        json!(u64::MAX),
    ] {
        assert_says(
            &draft(&[("dflash_config.block_size", size)]).expect_err("refused"),
            &["block_size"],
        );
    }
}

#[test]
fn taps_have_a_defined_answer_each() {
    let with = |ids: Value| {
        draft(&[
            ("num_target_layers", json!(4)),
            ("dflash_config.target_layer_ids", ids),
        ])
    };
    assert_eq!(
        with(json!([3, 0])).expect("unordered").target_layer_ids,
        [3, 0],
        "the order of concatenation"
    );
    assert_eq!(
        with(json!([2, 2])).expect("repeated").target_layer_ids,
        [2, 2]
    );
    for (ids, parts) in [
        (json!([-1, 2]), &["target_layer_ids", "-1"] as &[&str]),
        (json!([1, 4]), &["tap 4", "4 layers", "count the embedding"]),
        (json!([1, 9]), &["tap 9"]),
        (json!([]), &["target_layer_ids"]),
        (json!(3), &["target_layer_ids", "list"]),
        (json!(["a"]), &["target_layer_ids"]),
    ] {
        assert_says(&with(ids).expect_err("refused"), parts);
    }
    assert_eq!(
        with(json!([1, 4])).expect_err("shifted").code(),
        "E-PAIR-TAPS"
    );
}

#[test]
fn the_mask_token_is_an_id_of_the_vocabulary() {
    let with = |id: Value| draft(&[("dflash_config.mask_token_id", id)]);
    assert_eq!(with(json!(100)).expect_err("outside").code(), "E-PAIR-MASK");
    assert_says(&with(json!(-1)).expect_err("negative"), &["mask_token_id"]);
    assert_says(
        &with(json!("<mask>")).expect_err("text"),
        &["mask_token_id"],
    );
    // Other special tokens never stand in.
    let others = [
        ("dflash_config.mask_token_id", NULL),
        ("pad_token_id", json!(0)),
        ("eos_token_id", json!(1)),
    ];
    assert_says(
        &draft(&others).expect_err("absent"),
        &["mask_token_id", "missing"],
    );
}

#[test]
fn num_target_layers_and_biases() {
    let layers = |changes: Changes<'_>| draft(changes).map(|c| (c.num_target_layers, c.notes));
    assert_eq!(
        layers(&[("num_target_layers", json!(9))]).expect("flat").0,
        Some(9)
    );
    assert_eq!(
        layers(&[("dflash_config.num_target_layers", json!(9))])
            .expect("nested")
            .0,
        Some(9)
    );
    let (both, notes) = layers(&[
        ("num_target_layers", json!(9)),
        ("dflash_config.num_target_layers", json!(7)),
    ])
    .expect("both");
    assert_eq!(both, Some(9), "the flat place is the first");
    assert_noted(&notes, &["num_target_layers", "disagree"]);
    assert!(
        draft(&[("attention_bias", json!(true))])
            .expect("flat")
            .attention_bias
    );
    assert_says(
        &draft(&[("attention_bias", json!("yes"))]).expect_err("text"),
        &["attention_bias"],
    );
}

#[test]
fn scale_multiplier_and_soft_cap() {
    let read = |c: DraftConfig| (c.input_embedding_scale, c.output_multiplier, c.softcap);
    for place in ["dflash_config.", ""] {
        let key = |k: &str| format!("{place}{k}");
        let names = [
            key("input_embedding_scale"),
            key("output_multiplier"),
            key("final_logit_softcapping"),
        ];
        let changes = [
            (names[0].as_str(), json!(1.75)),
            (names[1].as_str(), json!(0.5)),
            (names[2].as_str(), json!(30)),
        ];
        assert_eq!(
            draft(&changes).map(read).expect("valid"),
            (Some(1.75), 0.5, Some(30.0))
        );
    }
    for none in [0.0, -1.0] {
        assert_eq!(
            draft(&[("final_logit_softcapping", json!(none))])
                .expect("no cap")
                .softcap,
            None
        );
    }
    let both = draft(&[
        ("output_multiplier", json!(2)),
        ("dflash_config.output_multiplier", json!(3)),
    ])
    .expect("both");
    assert_eq!(both.output_multiplier, 3.0);
    assert_noted(&both.notes, &["output_multiplier"]);
    assert_says(
        &draft(&[("output_multiplier", json!(0))]).expect_err("all logits equal"),
        &["output_multiplier"],
    );
    assert_says(
        &draft(&[("input_embedding_scale", json!("1"))]).expect_err("text"),
        &["input_embedding_scale"],
    );
}

#[test]
fn shapes_must_fit_and_nothing_is_derived() {
    for key in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
    ] {
        assert_says(
            &draft(&[(key, NULL)]).expect_err("absent"),
            &[key, "missing"],
        );
        assert_says(&draft(&[(key, json!("64"))]).expect_err("text"), &[key]);
        assert_says(&draft(&[(key, json!(-1))]).expect_err("negative"), &[key]);
        assert_says(
            &draft(&[(key, json!(u64::MAX))]).expect_err("absurd"),
            &[key],
        );
    }
    assert_says(
        &draft(&[("num_key_value_heads", json!(3))]).expect_err("3 of 4"),
        &["num_key_value_heads"],
    );
    assert_says(
        &draft(&[("head_dim", json!(7))]).expect_err("odd"),
        &["head_dim"],
    );
    assert_says(
        &draft(&[("hidden_act", json!("gelu"))]).expect_err("other"),
        &["hidden_act", "gelu"],
    );
}

#[test]
fn unknown_keys_and_code_are_noted_and_plain_targets_refused() {
    let config = draft(&[
        ("surprise", json!(1)),
        ("dflash_config.other", json!(2)),
        ("auto_map", json!({"AutoModel": "dflash.Model"})),
    ]);
    let notes = config.expect("ignored").notes;
    assert_noted(&notes, &["`surprise`"]);
    assert_noted(&notes, &["`dflash_config.other`"]);
    assert_noted(&notes, &["auto_map", "never executed"]);
    let plain = [
        ("architectures", json!(["Qwen3ForCausalLM"])),
        ("dflash_config", NULL),
        ("block_size", json!(8)),
    ];
    assert!(matches!(
        draft(&plain),
        Err(Error::Pairing {
            check: PairingCheck::Role,
            ..
        })
    ));
    assert_eq!(
        draft(&[("quantization", json!({"bits": 4, "group_size": 64}))])
            .expect("quantized")
            .quantization
            .map(|q| q.global.bits),
        Some(4)
    );
}
