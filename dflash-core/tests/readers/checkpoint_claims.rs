//! The accounting of tensors: each is claimed once, skipped with a note, or an error.

use dflash_core::Error;
use dflash_core::checkpoint::Claims;
use serde_json::{Value, json};

use super::support::{
    NORM, Tensors, assert_noted, assert_says, checkpoint, claims, claims_with, draft,
};

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
