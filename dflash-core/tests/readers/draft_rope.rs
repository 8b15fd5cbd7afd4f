//! A draft's position embedding: base, scaling, and the keys of its target.

use dflash_core::config::RopeScaling;
use serde_json::{Value, json};

use super::support::{Changes, assert_noted, assert_says, draft};

#[test]
fn rope_theta_nested_flat_both_absent() {
    let theta = |changes: Changes<'_>| draft(changes).map(|c| (c.rope.theta, c.notes));
    let nested = (
        "rope_parameters",
        json!({"rope_type": "default", "rope_theta": 500.0}),
    );
    assert_eq!(
        theta(&[nested.clone(), ("rope_theta", Value::Null)]).expect("nested"),
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
        &theta(&[("rope_theta", Value::Null)]).expect_err("absent"),
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
