//! The reference backend against recorded results of independent implementations.

use std::path::{Path, PathBuf};

use dflash_core::backend::reference::Reference;
use dflash_core::testing::golden::{F32_TOLERANCE, check_folder, check_quantized};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn check(name: &str) {
    let found =
        check_folder(&Reference::new(), &folder(name), F32_TOLERANCE).expect("the folder loads");
    assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
}

fn check_packed(name: &str) {
    let backend = Reference::new();
    let found = check_quantized(&backend, &folder(name)).expect("the folder loads");
    assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
}

macro_rules! folders {
    ($check:ident: $($test:ident: $name:literal),* $(,)?) => {
        $(#[test] fn $test() { $check($name); })*
    };
}

folders! {
    check:
    qwen3: "qwen3",
    qwen3_tied: "qwen3-tied",
    qwen3_sliding: "qwen3-swa",
    llama3: "llama3",
    qwen3_moe: "qwen3-moe",
    qwen35: "qwen3.5",
    qwen35_moe: "qwen3.5-moe",
}

folders! {
    check_packed:
    packed_qwen3: "qwen3",
    packed_qwen3_tied: "qwen3-tied",
    packed_llama3: "llama3",
    packed_qwen3_moe: "qwen3-moe",
    packed_qwen35: "qwen3.5",
    packed_qwen35_moe: "qwen3.5-moe",
}
