//! Weights in their layouts: plain, quantized, and experts.

use dflash_core::checkpoint::{Bytes, Checkpoint, SmallFloat, StoredType, WeightSource};
use dflash_core::config::MoeConfig;
use serde_json::{Value, json};

use super::support::{NORM, Tensors, assert_says, claims, claims_with, safetensors, target};

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
fn modules_of_small_floats() {
    for (format, columns, groups) in [
        (SmallFloat::Mxfp4, 8, 2),
        (SmallFloat::Nvfp4, 8, 4),
        (SmallFloat::Mxfp8, 16, 2),
    ] {
        let quantization = json!({"mode": format.name()});
        let tensors: [(&str, &str, &[usize]); 2] = [
            ("model.layers.0.p.weight", "U32", &[3, columns]),
            ("model.layers.0.p.scales", "U8", &[3, groups]),
        ];
        let claim = |tensors: Tensors<'_>, inp| {
            let mut all = claims_with(tensors, quantization.clone()).expect("one nest");
            let weight = all.weight("layers.0.p", 3, inp)?;
            weight.check()?;
            all.finish().map(|_| weight)
        };
        let weight = claim(&tensors, 64).expect("small floats");
        assert_eq!(weight.stored_bytes(), 3 * (4 * columns + groups));
        match weight.rows(1..2) {
            WeightSource::SmallFloat {
                codes,
                scales,
                format: found,
                out: 1,
                inp: 64,
            } => {
                assert_eq!(found, format);
                assert_eq!([codes.shape, scales.shape], [[1, columns], [1, groups]]);
            }
            other => panic!("{other:?}"),
        }
        let mut wrong = tensors;
        wrong[1].1 = "BF16";
        assert_says(
            &claim(&wrong, 64).expect_err("scales in floats"),
            &["p.scales", "BF16"],
        );
        assert_says(&claim(&tensors, 48).expect_err("width"), &["32", "48"]);
        let mut wrong = tensors.to_vec();
        wrong.push(("model.layers.0.p.biases", "BF16", &[3, 2]));
        assert_says(
            &claim(&wrong, 64).expect_err("nobody adds them"),
            &["p.biases"],
        );
    }
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
    assert_says(
        &weight(AFFINE, own(json!({"mode": "mxfp4"}))).expect_err("scales in floats"),
        &["p.scales", "not supported"],
    );
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
