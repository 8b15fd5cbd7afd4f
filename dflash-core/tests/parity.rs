//! The parity report of the reference backend, and of one that it must flag.

use std::path::{Path, PathBuf};

use dflash_core::backend::Exactness;
use dflash_core::backend::reference::Reference;
use dflash_core::testing::parity::Parity;
use dflash_core::testing::row_noise::RowNoise;

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
        .join("target")
}

#[test]
fn the_reference_is_bit_equal() {
    let folders = ["qwen3", "qwen3.5", "qwen3.5-moe"].map(|name| (name, target(name)));
    let models = folders
        .each_ref()
        .map(|(name, path)| (*name, path.as_path()));
    let parity = Parity::measure(&Reference::new(), &models).expect("it runs");
    println!("{parity}");
    assert_eq!(parity.level(), Exactness::Exact, "{parity}");
    parity.check_claim().expect("its claim holds");
    let text = parity.to_string();
    assert!(
        text.contains("claims exact, measured exact") && text.contains("qwen3.5-moe"),
        "{text}"
    );
    for op in [
        "linear",
        "swiglu",
        "attention",
        "moe",
        "gated_delta",
        "rms_norm",
    ] {
        assert!(parity.operations.iter().any(|c| c.op == op), "{op}");
    }
}

#[test]
fn noise_of_a_rounding_is_flagged() {
    let folder = target("qwen3");
    let models = [("qwen3", folder.as_path())];
    let noisy = RowNoise::new(&Reference::new(), 2e-7);
    let honest = Parity::measure(&noisy, &models).expect("it runs");
    println!("{honest}");
    assert_eq!(honest.level(), Exactness::TieTolerant);
    honest.check_claim().expect("it claims no more");
    for case in &honest.operations {
        let disturbed = ["linear", "swiglu", "attention", "moe"].contains(&case.op);
        assert_eq!(case.difference.is_some(), disturbed, "{case:?}");
        assert!(case.relative < 1e-6, "{case:?}");
    }
    assert!(
        honest
            .models
            .iter()
            .all(|(_, m)| !m.equal && m.absolute > 0.0)
    );

    let boasting = Parity::measure(&noisy.claiming_exact(), &[]).expect("it runs");
    let refused = boasting.check_claim().expect_err("the claim is false");
    assert!(
        refused.contains("linear") && refused.contains("differ"),
        "{refused}"
    );
}
