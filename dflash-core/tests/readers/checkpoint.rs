//! Files, indices, and the accounting of tensors, with checkpoints made on the spot.

use std::path::Path;

use dflash_core::checkpoint::{Bytes, Checkpoint, Claims, StoredType, WeightSource};
use dflash_core::config::MoeConfig;
use dflash_core::{Error, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::{
    assert_noted, assert_says, checkpoint, draft, raw_safetensors, safetensors, target,
};

type Tensors<'a> = &'a [(&'a str, &'a str, &'a [usize])];

fn claims_with(tensors: Tensors<'_>, quantization: Value) -> Result<Claims> {
    let config = target("qwen3", &[("quantization", quantization)]).expect("valid");
    checkpoint(tensors).claims_for(&config)
}

fn claims(tensors: Tensors<'_>) -> Claims {
    claims_with(tensors, Value::Null).expect("one nest")
}

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("written");
    }
    folder
}

fn open(files: &[(&str, Vec<u8>)]) -> Result<Checkpoint> {
    Checkpoint::open(folder(files).path())
}

fn index(map: Value) -> Vec<u8> {
    serde_json::to_vec(&json!({"metadata": {}, "weight_map": map})).expect("JSON")
}

const NORM: &str = "model.layers.0.input_layernorm.weight";

#[test]
fn every_tensor_is_claimed_once() {
    let tensors: Tensors<'_> = &[(NORM, "F32", &[4]), ("model.norm.weight", "BF16", &[4])];
    let mut all = claims(tensors);
    all.require("layers.0.input_layernorm.weight", &[4])
        .expect("there");
    let again = all
        .require("layers.0.input_layernorm.weight", &[4])
        .expect_err("twice");
    assert_says(&again, &[NORM, "twice"]);
    match all.finish() {
        Err(Error::UnclaimedTensors { names, .. }) => assert_eq!(names, ["model.norm.weight"]),
        other => panic!("{other:?}"),
    }
    let mut all = claims(tensors);
    all.require("norm.weight", &[4]).expect("there");
    all.require("layers.0.input_layernorm.weight", &[4])
        .expect("there");
    assert!(all.finish().expect("complete").is_empty());
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let mut all = claims(&[(NORM, "F32", &[4])]);
    match all.require("layers.1.input_layernorm.weight", &[4]) {
        Err(Error::MissingTensor { name, tried, .. }) => {
            assert_eq!(name, "layers.1.input_layernorm.weight");
            assert!(
                tried.contains(&"model.layers.1.input_layernorm.weight".to_owned()),
                "{tried:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_says(
        &all.require("layers.0.input_layernorm.weight", &[5])
            .expect_err("shape"),
        &[NORM, "[5]", "[4]"],
    );
    assert!(
        all.optional("layers.0.bias", &[4])
            .expect("absent")
            .is_none()
    );
    assert!(
        all.optional("layers.0.input_layernorm.weight", &[4])
            .expect("present")
            .is_some()
    );
}

#[test]
fn weights_are_floats_that_the_backends_know() {
    for dtype in ["F64", "I64", "U8"] {
        let mut all = claims(&[("model.layers.0.mlp.up_proj.weight", dtype, &[2, 4])]);
        let error = all
            .weight("layers.0.mlp.up_proj", 2, 4)
            .expect_err("no weight");
        assert_says(
            &error,
            &[
                "model.layers.0.mlp.up_proj.weight",
                dtype,
                "F32, BF16 or F16",
            ],
        );
    }
    for (dtype, stored) in [
        ("F32", StoredType::F32),
        ("BF16", StoredType::Bf16),
        ("F16", StoredType::F16),
    ] {
        let mut all = claims(&[("model.layers.0.mlp.up_proj.weight", dtype, &[2, 4])]);
        match all.weight("layers.0.mlp.up_proj", 2, 4).expect("a weight") {
            WeightSource::Plain(tensor) => assert_eq!(tensor.dtype, stored),
            other => panic!("{other:?}"),
        }
    }
}

/// An affine module of 3 by 64 in 4 bits and groups of 32.
const AFFINE: Tensors<'static> = &[
    ("model.layers.0.p.weight", "U32", &[3, 8]),
    ("model.layers.0.p.scales", "BF16", &[3, 2]),
    ("model.layers.0.p.biases", "BF16", &[3, 2]),
];

#[test]
fn affine_modules_and_their_rows() {
    let mut all = claims_with(AFFINE, json!({"bits": 4, "group_size": 32})).expect("one nest");
    let weight = all.weight("layers.0.p", 3, 64).expect("affine");
    assert_eq!(
        (weight.out(), weight.inp(), weight.stored_bytes()),
        (3, 64, 3 * 32 + 2 * 3 * 4)
    );
    match weight.rows(1..3) {
        WeightSource::Affine {
            codes,
            scales,
            biases,
            bits: 4,
            group: 32,
            out: 2,
            inp: 64,
        } => {
            assert_eq!(
                [codes.shape, scales.shape, biases.shape],
                [[2, 8], [2, 2], [2, 2]]
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(all.finish().expect("all three claimed").is_empty());
}

#[test]
fn affine_modules_that_contradict_their_configuration() {
    let weight = |tensors: Tensors<'_>, quantization| {
        claims_with(tensors, quantization)
            .expect("one nest")
            .weight("layers.0.p", 3, 64)
    };
    let own = |spec: Value| json!({"bits": 4, "group_size": 32, "model.layers.0.p": spec});
    assert_says(
        &weight(AFFINE, Value::Null).expect_err("unsaid"),
        &["model.layers.0.p.scales", "quantization"],
    );
    assert_says(
        &weight(AFFINE, own(json!({"bits": 8, "group_size": 32}))).expect_err("width"),
        &["[3, 16]", "[3, 8]"],
    );
    assert_says(
        &weight(AFFINE, own(json!({"bits": 4, "group_size": 64}))).expect_err("group"),
        &["[3, 1]", "[3, 2]"],
    );
    assert_says(
        &weight(AFFINE, own(json!(false))).expect_err("excluded"),
        &["[3, 64]", "[3, 8]"],
    );
    for mode in ["mxfp4", "mxfp8", "nvfp4"] {
        let error = weight(AFFINE, own(json!({"mode": mode}))).expect_err("not yet");
        assert_says(&error, &[mode, "not supported", "affine"]);
    }
    assert_says(
        &weight(&AFFINE[..2], own(json!(true))).expect_err("no biases"),
        &["p.biases", "missing"],
    );
    let plain: Tensors<'_> = &[("model.layers.0.p.weight", "F32", &[3, 64])];
    assert!(
        weight(plain, json!({"bits": 4, "group_size": 32})).is_ok(),
        "no scales, not named: plain"
    );
    assert_says(
        &weight(plain, own(json!(true))).expect_err("named"),
        &["model.layers.0.p.scales", "missing"],
    );
    let mixed: Tensors<'_> = &[
        AFFINE[0],
        AFFINE[1],
        ("model.layers.0.p.biases", "F32", &[3, 2]),
    ];
    assert_says(
        &weight(mixed, json!({"bits": 4, "group_size": 32})).expect_err("two types"),
        &["BF16", "F32"],
    );
    let narrow = claims_with(AFFINE, json!({"bits": 4, "group_size": 32}))
        .expect("one nest")
        .weight("layers.0.p", 3, 48);
    assert_says(&narrow.expect_err("48 by 32"), &["32", "48"]);
}

#[test]
fn experts_in_three_layouts() {
    let moe = MoeConfig {
        experts: 2,
        top_k: 1,
        intermediate_size: 3,
        norm_topk: true,
        shared_intermediate_size: None,
    };
    let stacked: Tensors<'_> = &[
        (
            "model.layers.0.mlp.switch_mlp.gate_proj.weight",
            "F32",
            &[2, 3, 4],
        ),
        (
            "model.layers.0.mlp.switch_mlp.up_proj.weight",
            "F32",
            &[2, 3, 4],
        ),
        (
            "model.layers.0.mlp.switch_mlp.down_proj.weight",
            "F32",
            &[2, 4, 3],
        ),
    ];
    let fused: Tensors<'_> = &[
        ("model.layers.0.mlp.experts.gate_up_proj", "F32", &[2, 6, 4]),
        ("model.layers.0.mlp.experts.down_proj", "F32", &[2, 4, 3]),
    ];
    let single: Tensors<'_> = &[
        (
            "model.layers.0.mlp.experts.0.gate_proj.weight",
            "F32",
            &[3, 4],
        ),
        (
            "model.layers.0.mlp.experts.0.up_proj.weight",
            "F32",
            &[3, 4],
        ),
        (
            "model.layers.0.mlp.experts.0.down_proj.weight",
            "F32",
            &[4, 3],
        ),
        (
            "model.layers.0.mlp.experts.1.gate_proj.weight",
            "F32",
            &[3, 4],
        ),
        (
            "model.layers.0.mlp.experts.1.up_proj.weight",
            "F32",
            &[3, 4],
        ),
        (
            "model.layers.0.mlp.experts.1.down_proj.weight",
            "F32",
            &[4, 3],
        ),
    ];
    for layout in [stacked, fused, single] {
        let mut all = claims(layout);
        let experts = all.experts("layers.0.mlp", 4, &moe).expect("experts");
        let shape = |w: &WeightSource| (w.out(), w.inp(), w.stored_bytes());
        for (list, expected) in [
            (&experts.gate, (3, 4, 48)),
            (&experts.up, (3, 4, 48)),
            (&experts.down, (4, 3, 48)),
        ] {
            assert_eq!(list.iter().map(shape).collect::<Vec<_>>(), [expected; 2]);
        }
        assert!(all.finish().expect("complete").is_empty());
    }
    let mut all = claims(&single[..4]);
    assert_says(
        &all.experts("layers.0.mlp", 4, &moe)
            .expect_err("one is missing"),
        &["experts.1.up_proj"],
    );
}

#[test]
fn fused_experts_are_gate_first() {
    let tensors: Tensors<'_> = &[
        ("model.layers.0.mlp.experts.gate_up_proj", "F32", &[1, 2, 1]),
        ("model.layers.0.mlp.experts.down_proj", "F32", &[1, 1, 1]),
    ];
    let mut file = safetensors(tensors);
    let end = file.len();
    let values = |range: std::ops::Range<usize>| {
        range
            .flat_map(|v| (v as f32).to_le_bytes())
            .collect::<Vec<_>>()
    };
    // Tensors lie in the order of the list.
    file[end - 12..].copy_from_slice(&values(1..4));
    let config = target("qwen3", &[]).expect("valid");
    let mut all = Checkpoint::from_bytes("made", Bytes::copied(&file))
        .and_then(|c| c.claims_for(&config))
        .expect("valid");
    let moe = MoeConfig {
        experts: 1,
        top_k: 1,
        intermediate_size: 1,
        norm_topk: true,
        shared_intermediate_size: None,
    };
    let experts = all.experts("layers.0.mlp", 1, &moe).expect("experts");
    let value = |weights: &[WeightSource]| match &weights[0] {
        WeightSource::Plain(tensor) => tensor.to_f32().expect("floats")[0],
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [
            value(&experts.gate),
            value(&experts.up),
            value(&experts.down)
        ],
        [1.0, 2.0, 3.0]
    );
}

#[test]
fn heads_tied_and_untied() {
    let with: Tensors<'_> = &[(NORM, "F32", &[4]), ("lm_head.weight", "F32", &[10, 4])];
    let rest = |mut all: Claims| {
        all.require("layers.0.input_layernorm.weight", &[4])
            .expect("there");
        all.finish()
    };
    let mut tied = claims(with);
    assert!(tied.head_is_tied(Some(true)));
    assert_noted(&rest(tied).expect("dropped"), &["lm_head", "dropped"]);
    for unsaid in [Some(false), None] {
        let mut own = claims(with);
        assert!(!own.head_is_tied(unsaid));
        own.weight("lm_head", 10, 4).expect("there");
        assert!(rest(own).expect("complete").is_empty());
    }
    let without = &with[..1];
    assert!(claims(without).head_is_tied(None));
    let mut missing = claims(without);
    assert!(!missing.head_is_tied(Some(false)));
    assert!(matches!(
        missing.weight("lm_head", 10, 4),
        Err(Error::MissingTensor { .. })
    ));
    assert!(
        matches!(rest(claims(with)), Err(Error::UnclaimedTensors { .. })),
        "a head that nobody asked about"
    );
}

#[test]
fn quantized_heads_are_dropped_whole() {
    let tensors: Tensors<'_> = &[
        (
            "language_model.model.layers.0.input_layernorm.weight",
            "F32",
            &[4],
        ),
        ("language_model.lm_head.weight", "U32", &[10, 4]),
        ("language_model.lm_head.scales", "F32", &[10, 1]),
        ("language_model.lm_head.biases", "F32", &[10, 1]),
    ];
    let mut all = claims_with(tensors, json!({"bits": 4, "group_size": 32})).expect("one nest");
    assert!(all.head_is_tied(Some(true)));
    all.require("layers.0.input_layernorm.weight", &[4])
        .expect("there");
    assert_eq!(all.finish().expect("complete").len(), 1);
}

#[test]
fn nests_and_skipped_parts() {
    for (decoder, head, name) in [
        ("", "", "(top level)"),
        ("model.", "", "model"),
        (
            "language_model.model.",
            "language_model.",
            "language_model.model",
        ),
        ("model.language_model.", "", "model.language_model"),
    ] {
        let names = [
            format!("{decoder}embed_tokens.weight"),
            format!("{decoder}layers.0.input_layernorm.weight"),
            format!("{head}lm_head.weight"),
            "mtp.layers.0.norm.weight".into(),
            "model.visual.blocks.0.norm.weight".into(),
            format!("{decoder}layers.0.self_attn.rotary_emb.inv_freq"),
        ];
        let tensors: Vec<(&str, &str, &[usize])> = names
            .iter()
            .map(|n| (n.as_str(), "F32", &[2, 4][..]))
            .collect();
        let mut all = claims(&tensors);
        assert_eq!(all.nest(), name);
        all.weight("embed_tokens", 2, 4).expect("embedding");
        all.require("layers.0.input_layernorm.weight", &[2, 4])
            .expect("norm");
        all.weight("lm_head", 2, 4).expect("head");
        let notes = all.finish().expect("complete");
        for what in ["vision", "multi-token prediction", "rope tables"] {
            assert_noted(&notes, &[what, "1 tensor"]);
        }
    }
    assert_says(
        &claims_with(&[("h.0.weight", "F32", &[1])], Value::Null).expect_err("no nest"),
        &["model.layers.0"],
    );
    let two: Tensors<'_> = &[
        (NORM, "F32", &[1]),
        ("layers.0.input_layernorm.weight", "F32", &[1]),
    ];
    assert_says(
        &claims_with(two, Value::Null).expect_err("two nests"),
        &["two decoders"],
    );
}

#[test]
fn drafts_skip_nothing_and_may_spell_codebooks_either_way() {
    for suffix in ["", ".weight"] {
        let book = format!("candidate_selector.predecessor_codebook{suffix}");
        let made = checkpoint(&[
            (book.as_str(), "BF16", &[100, 2]),
            ("layers.0.norm.weight", "F32", &[4]),
        ]);
        assert!(made.has_dflash2_tensors());
        let mut all = made
            .claims_for_draft(&draft(&[]).expect("valid"))
            .expect("one nest");
        let book = all
            .codebook("candidate_selector.predecessor_codebook", 100, 2)
            .expect("either spelling");
        assert_eq!((book.out(), book.inp()), (100, 2));
        all.require("layers.0.norm.weight", &[4]).expect("there");
        assert!(all.finish().expect("complete").is_empty());
    }
    let made = checkpoint(&[
        ("layers.0.norm.weight", "F32", &[4]),
        ("mtp.fc.weight", "F32", &[4]),
    ]);
    let mut all = made
        .claims_for_draft(&draft(&[]).expect("valid"))
        .expect("one nest");
    all.require("layers.0.norm.weight", &[4]).expect("there");
    assert!(matches!(all.finish(), Err(Error::UnclaimedTensors { .. })));
    // A draft with the prefix of a target's decoder, and its own parts without.
    let made = checkpoint(&[
        ("model.layers.0.norm.weight", "F32", &[4]),
        ("fc.weight", "F32", &[4, 8]),
    ]);
    let mut all = made
        .claims_for_draft(&draft(&[]).expect("valid"))
        .expect("one nest");
    all.require("layers.0.norm.weight", &[4]).expect("there");
    all.weight("fc", 4, 8).expect("at the top level");
    assert!(all.finish().expect("complete").is_empty());
}

#[test]
fn convolutions_tell_raw_files_from_converted_ones() {
    let conv = "model.layers.0.linear_attn.conv1d.weight";
    let offsets = |shapes: &[(&str, &[usize])]| {
        let tensors: Vec<(&str, &str, &[usize])> =
            shapes.iter().map(|(n, s)| (*n, "F32", *s)).collect();
        claims_with(&tensors, Value::Null).map(|c| c.norms_are_offsets())
    };
    assert!(offsets(&[(conv, &[6, 1, 4])]).expect("raw"));
    assert!(!offsets(&[(conv, &[6, 4, 1])]).expect("converted"));
    assert!(!offsets(&[(NORM, &[6])]).expect("none"));
    let other = "model.layers.1.linear_attn.conv1d.weight";
    assert_says(
        &offsets(&[(conv, &[6, 1, 4]), (other, &[6, 4, 1])]).expect_err("mixed"),
        &[conv, other],
    );
    assert!(offsets(&[(conv, &[6, 4])]).is_err() && offsets(&[(conv, &[6, 1, 1])]).is_err());
    for shape in [&[6, 1, 4], &[6, 4, 1]] {
        let mut all = claims(&[(conv, "F32", shape)]);
        let kernel = all
            .conv_kernel("layers.0.linear_attn.conv1d.weight", 6, 4)
            .expect("either layout");
        assert_eq!(kernel.shape, [6, 4]);
    }
}

#[test]
fn folders_without_an_index() {
    let a = safetensors(&[("a", "F32", &[1])]);
    let b = safetensors(&[("b", "F32", &[2])]);
    let both = open(&[
        ("model-00001-of-00002.safetensors", a.clone()),
        ("model-00002-of-00002.safetensors", b),
    ])
    .expect("two shards");
    assert_eq!(
        (
            both.names().collect::<Vec<_>>(),
            both.total_bytes(),
            both.len()
        ),
        (vec!["a", "b"], 12, 2)
    );
    let missing = open(&[("model-00001-of-00002.safetensors", a.clone())]).expect_err("incomplete");
    assert_says(&missing, &["1 of 2", "model-00002-of-00002.safetensors"]);
    let twice = open(&[
        ("model.safetensors", a.clone()),
        ("model-1.safetensors", a.clone()),
    ])
    .expect_err("twice");
    assert_says(
        &twice,
        &["tensor `a`", "model-1.safetensors", "model.safetensors"],
    );
    let extra = open(&[
        ("model.safetensors", a.clone()),
        ("mtp.safetensors", a.clone()),
    ])
    .expect("ignored");
    assert_noted(extra.notes(), &["mtp.safetensors"]);
    assert_says(&open(&[]).expect_err("empty"), &["model*.safetensors"]);
    assert_says(
        &open(&[("pytorch_model.bin", vec![])]).expect_err("pickle"),
        &["pickle"],
    );
    assert_says(&open(&[("m.gguf", vec![])]).expect_err("gguf"), &["m.gguf"]);
    assert!(matches!(
        Checkpoint::open(Path::new("/nowhere/at/all")),
        Err(Error::NotFound { .. })
    ));
    let file = folder(&[("model.safetensors", a)]);
    assert!(matches!(
        Checkpoint::open(&file.path().join("model.safetensors")),
        Err(Error::NotFound { .. })
    ));
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let (a, b) = (
        safetensors(&[("a", "F32", &[1])]),
        safetensors(&[("b", "F32", &[1])]),
    );
    let with = |map: Value| {
        open(&[
            ("x.safetensors", a.clone()),
            ("y.safetensors", b.clone()),
            ("model.safetensors.index.json", index(map)),
        ])
    };
    assert_eq!(
        with(json!({"a": "x.safetensors", "b": "y.safetensors"}))
            .expect("agrees")
            .len(),
        2
    );
    let part = with(json!({"a": "x.safetensors"})).expect("a part");
    assert_eq!(part.len(), 1);
    assert_noted(part.notes(), &["y.safetensors"]);
    let absent =
        with(json!({"a": "x.safetensors", "c": "x.safetensors"})).expect_err("not in the shard");
    assert_says(&absent, &["`c`", "no file has it"]);
    let moved = with(json!({"a": "y.safetensors", "b": "x.safetensors"})).expect_err("swapped");
    assert_says(&moved, &["`a`", "x.safetensors"]);
    assert_says(
        &with(json!({"a": "z.safetensors"})).expect_err("no such shard"),
        &["z.safetensors", "missing"],
    );
    for evil in [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/x.safetensors",
        "a\\x.safetensors",
        "..",
        "x.bin",
        "",
        ".x.safetensors",
        "C:x.safetensors",
    ] {
        let error = with(json!({"a": evil})).expect_err("not a plain name");
        assert_says(&error, &["tensor `a`", "same folder"]);
    }
    for map in [json!({}), json!([]), json!({"a": 3}), Value::Null] {
        assert!(with(map).is_err());
    }
}

#[test]
fn damaged_headers_are_errors() {
    let entry = |name: &str, dtype: &str, shape: &str, range: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}"#)
    };
    let parse = |entries: &[String], bytes| {
        Checkpoint::from_bytes(
            "made",
            Bytes::copied(&raw_safetensors(
                &format!("{{{}}}", entries.join(",")),
                bytes,
            )),
        )
    };
    assert!(parse(&[entry("a", "F32", "[1]", "[0,4]")], 4).is_ok());
    for (what, entries, bytes) in [
        ("truncated data", vec![entry("a", "F32", "[1]", "[0,4]")], 3),
        ("data left over", vec![entry("a", "F32", "[1]", "[0,4]")], 5),
        (
            "a shape that does not fit",
            vec![entry("a", "F32", "[2]", "[0,4]")],
            4,
        ),
        (
            "an overflowing shape",
            vec![entry("a", "F32", "[4294967296,4294967296,2]", "[0,4]")],
            4,
        ),
        (
            "a negative size",
            vec![entry("a", "F32", "[-1]", "[0,4]")],
            4,
        ),
        (
            "offsets that go back",
            vec![entry("a", "F32", "[1]", "[4,0]")],
            4,
        ),
        (
            "overlapping tensors",
            vec![
                entry("a", "F32", "[1]", "[0,4]"),
                entry("b", "F32", "[1]", "[0,4]"),
            ],
            4,
        ),
        (
            "a gap",
            vec![
                entry("a", "F32", "[1]", "[0,4]"),
                entry("b", "F32", "[1]", "[8,12]"),
            ],
            12,
        ),
        (
            "offsets outside",
            vec![entry(
                "a",
                "F32",
                "[1]",
                "[18446744073709551612,18446744073709551616]",
            )],
            4,
        ),
        (
            "an unknown type",
            vec![entry("a", "F99", "[1]", "[0,4]")],
            4,
        ),
        (
            "one name twice",
            vec![
                entry("a", "F32", "[1]", "[0,4]"),
                entry("a", "F32", "[1]", "[0,4]"),
            ],
            4,
        ),
    ] {
        let error = parse(&entries, bytes).expect_err(what);
        assert_eq!(error.code(), "E-CHECKPOINT", "{what}: {error}");
    }
    for (what, file) in [
        ("empty", vec![]),
        ("too short", vec![1, 2, 3]),
        (
            "a header longer than the file",
            [u64::MAX.to_le_bytes().to_vec(), b"{}".to_vec()].concat(),
        ),
        (
            "a header that claims 90 MB",
            [90_000_000_u64.to_le_bytes().to_vec(), b"{}".to_vec()].concat(),
        ),
        ("no JSON", raw_safetensors("nonsense", 0)),
        ("no object", raw_safetensors("[]", 0)),
        (
            "no UTF-8",
            [4_u64.to_le_bytes().to_vec(), vec![0xff; 4]].concat(),
        ),
    ] {
        assert!(
            Checkpoint::from_bytes("made", Bytes::copied(&file)).is_err(),
            "{what}"
        );
        assert!(open(&[("model.safetensors", file)]).is_err(), "{what}");
    }
    assert!(
        open(&[("model.safetensors", raw_safetensors("{}", 0))])
            .expect("no tensors")
            .is_empty()
    );
}
