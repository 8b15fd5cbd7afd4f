//! Every row of the table of draft keys: first place, second place, both, neither.

use std::path::Path;

use dflash_core::config::{DraftConfig, DraftKind, DraftLayer, RopeScaling};
use dflash_core::{Error, PairingCheck};
use serde_json::{Value, json};

use super::support::{Changes, assert_noted, assert_says, draft, draft_json};

const NULL: Value = Value::Null;

fn dflash2(key: &str, place: &str, value: Value) -> Result<DraftConfig, Error> {
    let all = [
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
    ];
    let mut changes = vec![("architectures".to_owned(), json!(["DFlash2DraftModel"]))];
    changes.extend(
        all.iter()
            .filter(|k| **k != key)
            .map(|k| (format!("dflash_config.{k}"), json!(2))),
    );
    changes.push((format!("{place}{key}"), value));
    let changes: Vec<(&str, Value)> = changes
        .iter()
        .map(|(k, v)| (k.as_str(), v.clone()))
        .collect();
    draft(&changes)
}

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
fn the_kind_comes_from_architectures_else_from_tensors() {
    let parse = |changes: Changes<'_>, tensors| {
        DraftConfig::parse(Path::new("c"), &draft_json(changes), tensors)
    };
    let sizes = [
        ("dflash_config.conv_kernel_size", json!(2)),
        ("dflash_config.conv_group_size", json!(4)),
        ("dflash_config.selector_rank", json!(3)),
        ("dflash_config.selector_top_k", json!(5)),
    ];
    let named = [
        &sizes[..],
        &[("architectures", json!(["DFlash2DraftModel"]))],
    ]
    .concat();
    assert_eq!(
        parse(&named, false).expect("named").kind,
        DraftKind::DFlash2
    );
    let found = parse(&sizes, true).expect("found by its tensors");
    assert_eq!(found.kind, DraftKind::DFlash2);
    assert_noted(&found.notes, &["DFlash 2 tensors"]);
    let unnamed = [&sizes[..], &[("architectures", NULL)]].concat();
    assert_eq!(
        parse(&unnamed, true).expect("found").kind,
        DraftKind::DFlash2
    );
    assert_eq!(
        parse(&unnamed, false).expect("plain").kind,
        DraftKind::DFlash1
    );
    let d2 = parse(&named, true)
        .expect("both")
        .dflash2
        .expect("DFlash 2");
    assert_eq!(
        (
            d2.conv_kernel_size,
            d2.conv_group_size,
            d2.selector_rank,
            d2.selector_top_k
        ),
        (2, 4, 3, 5)
    );
    let newer =
        draft(&[("architectures", json!(["DFlash3DraftModel"]))]).expect_err("unknown generation");
    assert_says(
        &newer,
        &["DFlash3DraftModel", "not supported", "DFlash2DraftModel"],
    );
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
fn rope_theta_nested_flat_both_absent() {
    let theta = |changes: Changes<'_>| draft(changes).map(|c| (c.rope.theta, c.notes));
    let nested = (
        "rope_parameters",
        json!({"rope_type": "default", "rope_theta": 500.0}),
    );
    assert_eq!(
        theta(&[nested.clone(), ("rope_theta", NULL)]).expect("nested"),
        (500.0, vec![])
    );
    let (used, notes) = theta(std::slice::from_ref(&nested)).expect("both");
    assert_eq!(used, 500.0);
    assert_noted(
        &notes,
        &["rope_parameters.rope_theta", "rope_theta", "first is used"],
    );
    assert_eq!(
        theta(&[nested, ("rope_theta", json!(500))])
            .expect("both, equal")
            .1,
        Vec::<String>::new()
    );
    let only_type = [("rope_parameters", json!({"rope_type": "default"}))];
    assert_eq!(theta(&only_type).expect("type nested, theta flat").0, 1e6);
    assert_says(
        &theta(&[("rope_theta", NULL)]).expect_err("absent"),
        &["rope_theta", "missing"],
    );
    for bad in [
        json!(0),
        json!(-5),
        json!(1),
        json!("1e4"),
        json!(true),
        json!([1e4]),
        json!(1e300),
    ] {
        assert_says(
            &theta(&[("rope_theta", bad)]).expect_err("no base"),
            &["rope_theta"],
        );
    }
}

#[test]
fn rope_scaling_places_and_types() {
    let scaling = |changes: Changes<'_>| draft(changes).map(|c| (c.rope.scaling, c.notes));
    let linear = |factor: f64| json!({"rope_type": "linear", "factor": factor});
    let found = scaling(&[("rope_scaling", linear(2.0))]).expect("flat");
    assert_eq!(found, (RopeScaling::Linear { factor: 2.0 }, vec![]));
    let (used, notes) = scaling(&[
        ("rope_parameters", linear(4.0)),
        ("rope_scaling", linear(2.0)),
    ])
    .expect("both");
    assert_eq!(used, RopeScaling::Linear { factor: 4.0 });
    assert_noted(&notes, &["rope_parameters", "rope_scaling", "disagree"]);
    let old =
        scaling(&[("rope_scaling", json!({"type": "linear", "factor": 2}))]).expect("old spelling");
    assert_eq!(old.0, RopeScaling::Linear { factor: 2.0 });
    for (object, parts) in [
        (
            json!({"rope_type": "dynamic", "factor": 2}),
            &["dynamic", "not supported", "yarn"] as &[&str],
        ),
        (json!({"rope_type": "longrope"}), &["longrope"]),
        (json!({"rope_type": "linear"}), &["factor", "missing"]),
        (json!({"rope_type": "linear", "factor": 0.5}), &["factor"]),
        (json!({"rope_type": "linear", "factor": "2"}), &["factor"]),
        (
            json!({"rope_type": "linear", "type": "yarn", "factor": 2}),
            &["contradicts"],
        ),
        (
            json!({"rope_type": "linear", "factor": 2, "surprise": 1}),
            &["rope_scaling.surprise"],
        ),
        (
            json!({"rope_type": "default", "factor": 2}),
            &["rope_scaling.factor"],
        ),
        (json!({"factor": 2}), &["rope_scaling.factor"]),
        (
            json!({"rope_type": "llama3", "factor": 8}),
            &["original_max_position_embeddings"],
        ),
        (
            json!({"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 64, "low_freq_factor": 4, "high_freq_factor": 1}),
            &["high_freq_factor"],
        ),
        (json!({"rope_type": 3}), &["rope_type"]),
        (json!("yarn"), &["rope_scaling", "object"]),
    ] {
        assert_says(
            &scaling(&[("rope_scaling", object)]).expect_err("refused"),
            parts,
        );
    }
}

#[test]
fn yarn_reads_or_refuses_every_key() {
    let yarn = |more: Value| {
        let mut object =
            json!({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64});
        for (k, v) in more.as_object().expect("object") {
            object[k] = v.clone();
        }
        draft(&[
            ("rope_parameters", object),
            ("max_position_embeddings", json!(512)),
            ("head_dim", json!(16)),
        ])
    };
    let amplitude = |more: Value| yarn(more).map(|c| c.rope.amplitude());
    let close = |found: f32, expected: f64| {
        assert!(
            (f64::from(found) - expected).abs() < 1e-6,
            "{found} {expected}"
        )
    };
    close(amplitude(json!({})).expect("default"), 1.2079441541679836);
    close(
        amplitude(json!({"attention_factor": 0.9})).expect("given"),
        0.9,
    );
    let deepseek = json!({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0});
    close(amplitude(deepseek).expect("quotient"), 0.9210423553163399);
    close(
        amplitude(json!({"mscale": 1.0, "mscale_all_dim": 1.0})).expect("equal"),
        1.0,
    );
    close(
        amplitude(json!({"factor": 1.0})).expect("no stretching"),
        1.0,
    );
    for bad in [
        json!({"mscale": 1.0}),
        json!({"attention_factor": 0}),
        json!({"beta_fast": 0.5}),
        json!({"beta_slow": 0}),
        json!({"truncate": "no"}),
        json!({"extrapolation_factor": 1}),
        json!({"original_max_position_embeddings": 0}),
    ] {
        assert!(yarn(bad.clone()).is_err(), "{bad}");
    }
    let untruncated = yarn(json!({"truncate": false})).expect("valid");
    assert_ne!(
        untruncated.rope.periods(),
        yarn(json!({})).expect("valid").rope.periods()
    );
    let stand_in = yarn(json!({"original_max_position_embeddings": null})).expect("a stand-in");
    assert!(matches!(
        stand_in.rope.scaling,
        RopeScaling::Yarn {
            original_length: 512,
            ..
        }
    ));
    assert_noted(
        &stand_in.notes,
        &["original_max_position_embeddings", "512"],
    );
}

#[test]
fn rope_keys_of_the_target_do_not_apply() {
    let copied = [
        ("partial_rotary_factor", json!(0.25)),
        ("mrope_section", json!([1, 1, 2])),
        ("mrope_interleaved", json!(true)),
    ];
    let config = draft(&copied).expect("ignored");
    assert_eq!(config.rope.dims, 8, "whole heads are rotated");
    assert_noted(&config.notes, &["partial_rotary_factor"]);
    let nested = json!({"rope_type": "default", "partial_rotary_factor": 0.25, "mrope_section": [1], "mrope_interleaved": true});
    assert_eq!(
        draft(&[("rope_parameters", nested)])
            .expect("ignored")
            .rope
            .dims,
        8
    );
}

#[test]
fn windows_follow_layer_types() {
    let types = json!(["sliding_attention", "full_attention"]);
    let with = |changes: Changes<'_>| draft(&[&[("layer_types", types.clone())], changes].concat());
    let on = ("use_sliding_window", json!(true));
    let window = ("sliding_window", json!(8));
    let config = with(&[on.clone(), window.clone()]).expect("valid");
    let (slides, full) = (
        DraftLayer {
            window: Some(8),
            causal: true,
        },
        DraftLayer {
            window: None,
            causal: false,
        },
    );
    assert_eq!(config.layers, [slides, full]);
    assert!(config.notes.is_empty());
    let unsaid = with(std::slice::from_ref(&window)).expect("the list decides");
    assert_eq!(unsaid.layers, [slides, full]);
    assert_noted(&unsaid.notes, &["use_sliding_window"]);
    let off = with(&[("use_sliding_window", json!(false)), window.clone()]).expect("no window");
    assert_eq!(
        off.layers,
        [
            DraftLayer {
                window: None,
                causal: true
            },
            full
        ],
        "causality is unchanged"
    );
    assert_noted(&off.notes, &["use_sliding_window"]);
    assert_says(
        &with(std::slice::from_ref(&on)).expect_err("no window given"),
        &["sliding_window", "missing"],
    );
    assert_says(
        &with(&[on.clone(), ("sliding_window", json!(7))]).expect_err("shorter than the block"),
        &["sliding_window", "7", "8"],
    );

    let absent = draft(&[on.clone(), window.clone()]).expect("all full");
    assert_eq!(absent.layers, [full; 2]);
    assert_noted(&absent.notes, &["use_sliding_window", "layer_types"]);
    for (types, part) in [
        (json!(["full_attention"]), "1 entries for 2 layers"),
        (
            json!(["full_attention", "linear_attention"]),
            "linear_attention",
        ),
        (json!("full_attention"), "list of strings"),
        (json!([1, 2]), "list of strings"),
    ] {
        assert_says(
            &draft(&[("layer_types", types)]).expect_err("refused"),
            &["layer_types", part],
        );
    }
}

#[test]
fn the_context_that_a_draft_needs() {
    let types = |a: &str, b: &str| {
        draft(&[
            ("layer_types", json!([a, b])),
            ("sliding_window", json!(12)),
            ("use_sliding_window", json!(true)),
        ])
    };
    let (s, f) = ("sliding_attention", "full_attention");
    assert_eq!(types(s, s).expect("valid").widest_window(), Some(12));
    assert_eq!(types(s, f).expect("valid").widest_window(), None);
}

#[test]
fn causality_of_every_kind_of_layer() {
    let layers = |changes: Changes<'_>| {
        let base = [
            (
                "layer_types",
                json!(["sliding_attention", "full_attention"]),
            ),
            ("sliding_window", json!(8)),
            ("use_sliding_window", json!(true)),
        ];
        draft(&[&base[..], changes].concat()).map(|c| {
            (
                c.layers.iter().map(|l| l.causal).collect::<Vec<_>>(),
                c.notes,
            )
        })
    };
    assert_eq!(layers(&[]).expect("absent").0, [true, false]);
    assert_eq!(
        layers(&[("is_causal", json!(true))]).expect("flat").0,
        [true, true]
    );
    assert_eq!(
        layers(&[("is_causal", json!(false))]).expect("flat").0,
        [false, false]
    );
    assert_eq!(
        layers(&[("dflash_config.causal", json!(true))])
            .expect("nested")
            .0,
        [true, true]
    );
    let (both, notes) = layers(&[
        ("is_causal", json!(false)),
        ("dflash_config.causal", json!(true)),
    ])
    .expect("both");
    assert_eq!(both, [false, false], "`is_causal` is the first place");
    assert_noted(&notes, &["is_causal", "dflash_config.causal"]);
    for misplaced in ["causal", "dflash_config.is_causal"] {
        assert_says(
            &layers(&[(misplaced, json!(true))]).expect_err("would be overlooked"),
            &[misplaced],
        );
    }
    assert_says(
        &layers(&[("is_causal", json!(1))]).expect_err("no boolean"),
        &["is_causal"],
    );
}

#[test]
fn dflash2_sizes_in_both_places() {
    let read = |c: DraftConfig| {
        c.dflash2.map(|d| {
            [
                d.conv_kernel_size,
                d.conv_group_size,
                d.selector_rank,
                d.selector_top_k,
            ]
        })
    };
    for (i, key) in [
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
    ]
    .into_iter()
    .enumerate()
    {
        let mut expected = [2; 4];
        expected[i] = 4;
        assert_eq!(
            dflash2(key, "dflash_config.", json!(4))
                .map(read)
                .expect("nested"),
            Some(expected)
        );
        assert_eq!(
            dflash2(key, "", json!(4)).map(read).expect("flat"),
            Some(expected)
        );
        assert_says(
            &dflash2(key, "", NULL).expect_err("absent"),
            &[key, "missing"],
        );
        assert_says(&dflash2(key, "", json!(0)).expect_err("zero"), &[key]);
    }
    assert_says(
        &dflash2("conv_group_size", "", json!(5)).expect_err("no divisor of 32"),
        &["conv_group_size", "5"],
    );
    assert_says(
        &dflash2("selector_top_k", "", json!(101)).expect_err("more than the vocabulary"),
        &["selector_top_k"],
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
