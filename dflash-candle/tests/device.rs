//! Candle's own operations, on its processor device, against the reference backend and recorded results.

use std::path::{Path, PathBuf};

use candle_core::Device;
use dflash_candle::CandleDevice;
use dflash_core::DType;
use dflash_core::spec::{Event, Step};
use dflash_core::testing::conformance;
use dflash_core::testing::golden::{self, F32_TOLERANCE, check_folder};

fn backend(dtype: DType) -> CandleDevice {
    CandleDevice::new(Device::Cpu, dtype)
}

/// Packed weights are refused when they are loaded.
const PACKED: [(&str, &str); 8] = [
    ("linear", "affine"),
    ("embedding", "affine"),
    ("swiglu", "affine"),
    ("moe", "affine"),
    ("linear", "small-float"),
    ("embedding", "small-float"),
    ("swiglu", "small-float"),
    ("moe", "small-float"),
];

#[test]
fn operations_equal_the_reference() {
    let failures = conformance::check(&backend(DType::F32));
    if let Err(problems) = conformance::expect(&failures, &PACKED) {
        panic!("{problems}");
    }
    assert!(
        failures
            .iter()
            .all(|f| f.difference.contains("not supported")),
        "only refusals: {failures:#?}"
    );
}

/// Results smaller than the format's numbers, and a bias that cancels what a product has rounded.
const ROUNDED_BF16: [(&str, &str); 2] = [
    ("unary", "Softplus of -95"),
    ("linear", "bf16 weight [1, 1], 1 rows"),
];

/// The same for f16, and an average of 590 values that nearly cancel, with rounded weights.
const ROUNDED_F16: [(&str, &str); 5] = [
    ("unary", "Softplus of -95"),
    ("unary", "Silu of -30"),
    ("unary", "Sigmoid of -30"),
    ("unary", "Softplus of -30"),
    ("kv_keep", "(300, 0..290), (300, 10..580)"),
];

#[test]
fn half_formats_equal_the_reference_within_their_rounding() {
    for (dtype, away) in [(DType::Bf16, &ROUNDED_BF16[..]), (DType::F16, &ROUNDED_F16)] {
        let failures = conformance::check(&backend(dtype));
        let expected = [&PACKED, away].concat();
        if let Err(problems) = conformance::expect(&failures, &expected) {
            panic!("{dtype}: {problems}");
        }
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../dflash-core/tests/golden")
        .join(name)
}

fn check(name: &str) {
    let found =
        check_folder(&backend(DType::F32), &folder(name), F32_TOLERANCE).expect("the folder loads");
    assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
}

#[test]
fn qwen3() {
    check("qwen3");
}

#[test]
fn qwen3_moe() {
    check("qwen3-moe");
}

#[test]
fn qwen35() {
    check("qwen3.5");
}

#[test]
fn a_greedy_round_reads_once() {
    let folder = folder("qwen3");
    let mut loaded = golden::load(
        &backend(DType::F32),
        &folder.join("target"),
        Some(&folder.join("d1")),
    )
    .expect("the pair loads");
    let request = golden::request(&[3, 1, 4, 1, 5], 40);
    let id = loaded.engine.start(request).expect("a fair request");
    let mut rounds = 0;
    loop {
        let before = loaded.engine.readbacks();
        let mut drafted = false;
        let step = loaded
            .engine
            .step(id, &mut |event| {
                drafted |= matches!(&event, Event::Round(round) if round.drafted > 0)
            })
            .expect("it runs");
        if drafted {
            rounds += 1;
            assert_eq!(loaded.engine.readbacks() - before, 1, "round {rounds}");
        }
        if let Step::Finished(report) = step {
            assert_eq!(report.tokens.len(), 40);
            break;
        }
    }
    assert!(rounds > 5, "{rounds} rounds were drafted");
}
