//! MLX on the processor: text and caches are plain decoding's, whatever the draft says.
//!
//! MLX claims no more than the tie-tolerant level. Its processor build turns out bit-equal where all layers are attention; a block
//! of the gated delta rule is one product of matrices, and near the row-by-row state.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::{Path, PathBuf};

use dflash_core::DType;
use dflash_core::testing::fakes::Behaviour;
use dflash_core::testing::golden::load_target;
use dflash_core::testing::lossless::{Case, check_draft_text, check_text};
use dflash_core::testing::record::Record;
use dflash_core::testing::states::{PlainStates, check_commits, check_rounds};
use dflash_mlx::{Mlx, Place};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../dflash-core/tests/golden")
        .join(name)
}

fn none(what: &str, found: &[String]) {
    let shown = &found[..found.len().min(20)];
    assert!(
        found.is_empty(),
        "{what}: {} differences\n{}",
        found.len(),
        shown.join("\n")
    );
}

fn check(name: &str, tolerance: f32) {
    let backend = Mlx::new(Place::Processor, DType::F32);
    let target = folder(name).join("target");
    let record = Record::read(&folder(name).join("target.golden.safetensors")).expect("a record");
    let prompt = record.ids("input_ids").expect("a prompt");
    let case = Case {
        target: &target,
        prompt: &prompt,
        tokens: 24,
        block: 8,
    };
    none(name, &check_text(&backend, &case).expect("it runs"));
    none(
        name,
        &check_commits(&backend, &case, tolerance).expect("it runs"),
    );
    let model = load_target(&backend, &target).expect("it loads");
    let plain = PlainStates::decode(&model, &prompt, case.tokens).expect("it decodes");
    let plain = plain.within(tolerance);
    let behaviours = [
        Behaviour::Half(0),
        Behaviour::Half(3),
        Behaviour::Half(7),
        Behaviour::Liar,
        Behaviour::NotANumber(None),
    ];
    for (i, behaviour) in behaviours.into_iter().enumerate() {
        let chunk = [1, 4, 7, 512][i % 4];
        let found = check_rounds(&backend, &case, &plain, behaviour, chunk).expect("it runs");
        none(name, &found);
    }
    for draft in ["d1", "d2-allswa"] {
        let draft = folder(name).join(draft);
        let found = check_draft_text(&backend, &case, &draft, &[2, 5, 8]);
        none(name, &found.expect("it runs"));
    }
}

/// What sums in another order may be away, of the largest number of a cache.
const REORDERED: f32 = 1e-4;

macro_rules! folders {
    ($($(#[$when:meta])? $test:ident: $name:literal, $tolerance:expr;)*) => {
        $(#[test] $(#[$when])? fn $test() { check($name, $tolerance); })*
    };
}

folders! {
    qwen3_sliding: "qwen3-swa", 0.0;
    qwen35: "qwen3.5", REORDERED;
    #[ignore = "takes half a minute; its layers are among those of qwen3-swa"]
    qwen3: "qwen3", 0.0;
    #[ignore = "takes half a minute; its experts are tested apart"]
    qwen3_moe: "qwen3-moe", 0.0;
    #[ignore = "takes half a minute; llama differs from qwen3 in the rope alone"]
    llama3: "llama3", 0.0;
    #[ignore = "takes a minute; its parts are tested apart"]
    qwen35_moe: "qwen3.5-moe", REORDERED;
}
