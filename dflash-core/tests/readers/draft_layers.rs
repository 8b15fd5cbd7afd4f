//! A draft's layers: windows and causality.

use dflash_core::config::DraftLayer;
use serde_json::json;

use super::support::{Changes, assert_noted, assert_says, draft};

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
