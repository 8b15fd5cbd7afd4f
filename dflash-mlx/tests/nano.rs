//! MLX on the small trained model: every recorded text and round.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::Path;

use dflash_core::DType;
use dflash_core::testing::nano::check;
use dflash_mlx::{Mlx, Place};

#[test]
fn all_recorded_texts_and_rounds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../dflash-core/tests/nano");
    let backend = Mlx::new(Place::Processor, DType::F32);
    let found = check(&backend, Path::new(folder), usize::MAX, &[3]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}
