//! DFlash 1 or 2: how a draft's kind is found, and the sizes of the second.

use std::path::Path;

use dflash_core::Error;
use dflash_core::config::{DraftConfig, DraftKind};
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
