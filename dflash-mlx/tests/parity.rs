//! The parity report: MLX claims no more than was measured.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::{Path, PathBuf};

use dflash_core::DType;
use dflash_core::testing::parity::Parity;
use dflash_mlx::{Mlx, Place};

const MODELS: [&str; 4] = ["qwen3", "llama3", "qwen3.5", "qwen3.5-moe"];

#[test]
fn mlx_claims_no_more_than_was_measured() {
    let folder = |name: &str| -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../dflash-core/tests/golden")
            .join(name)
            .join("target")
    };
    let folders = MODELS.map(|name| (name, folder(name)));
    let models = folders
        .each_ref()
        .map(|(name, path)| (*name, path.as_path()));
    for dtype in [DType::F32, DType::Bf16] {
        let backend = Mlx::new(Place::Processor, dtype);
        let parity = Parity::measure(&backend, &models).expect("it runs");
        println!("{parity}");
        parity.check_claim().expect("its claim holds");
    }
}
