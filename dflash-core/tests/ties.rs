//! Rows that depend on how many are computed at once: texts part at counted near-ties only.

use std::path::{Path, PathBuf};

use dflash_core::backend::Exactness;
use dflash_core::backend::reference::Reference;
use dflash_core::testing::golden;
use dflash_core::testing::lossless::Case;
use dflash_core::testing::record::Record;
use dflash_core::testing::row_noise::RowNoise;
use dflash_core::testing::ties::{Seen, check_ties};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn check(backend: &RowNoise<Reference>, name: &str) -> (Vec<String>, Seen) {
    let record = Record::read(&folder(name).join("target.golden.safetensors")).expect("a record");
    let case = Case {
        target: &folder(name).join("target"),
        prompt: &record.ids("input_ids").expect("a prompt"),
        tokens: 80,
        block: 8,
    };
    check_ties(backend, &case, &folder(name).join("d1"), &[2, 8]).expect("it runs")
}

#[test]
fn texts_part_at_counted_near_ties_only() {
    let mut parted = 0;
    for name in ["qwen3", "qwen3.5", "qwen3.5-moe", "llama3"] {
        for relative in [1e-6, 1e-4, 1e-2] {
            let backend = RowNoise::new(&Reference::new(), relative);
            let (found, seen) = check(&backend, name);
            assert!(found.is_empty(), "{name}, {relative}: {found:#?}");
            parted += seen.parted;
            if relative == 1e-6 {
                assert!(seen.near_ties * 20 < seen.tokens, "{name}: {seen:?}");
            }
        }
    }
    assert!(parted > 0, "noise that changes nothing shows nothing");
}

#[test]
fn a_false_claim_of_the_exact_level_is_caught() {
    let backend = RowNoise::new(&Reference::new(), 1e-2).claiming_exact();
    let found: Vec<String> = ["qwen3", "qwen3.5", "qwen3.5-moe", "llama3"]
        .into_iter()
        .flat_map(|name| check(&backend, name).0)
        .collect();
    assert!(!found.is_empty());
}

#[test]
fn the_rounding_is_measured_where_rows_are_not_exact() {
    let target = folder("qwen3").join("target");
    let rounding = |backend: &RowNoise<Reference>| {
        let loaded = golden::load(backend, &target, None).expect("it loads");
        let report = loaded.engine.report();
        (report.exactness, report.row_rounding)
    };
    let small = rounding(&RowNoise::new(&Reference::new(), 1e-6));
    let large = rounding(&RowNoise::new(&Reference::new(), 1e-3));
    assert_eq!(small.0, Exactness::TieTolerant);
    let (small, large) = (small.1.expect("measured"), large.1.expect("measured"));
    assert!(small > 0.0 && large > 100.0 * small, "{small} {large}");
    let none = rounding(&RowNoise::new(&Reference::new(), 0.0));
    // At least the spacing of the format's numbers.
    assert!(none.1.is_some_and(|r| r > 0.0 && r < 1e-4), "{none:?}");
    let exact = golden::load(&Reference::new(), &target, None).expect("it loads");
    assert_eq!(exact.engine.report().row_rounding, None);
}
