//! MLX on the small trained model: recorded texts and rounds; the ignored test takes all of them.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::Path;

use dflash_core::DType;
use dflash_core::testing::nano::check;
use dflash_mlx::{Mlx, Place};

fn compare(cases: usize, blocks: &[usize]) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../dflash-core/tests/nano");
    let backend = Mlx::new(Place::Processor, DType::F32);
    let found = check(&backend, Path::new(folder), cases, blocks).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn recorded_texts_and_rounds() {
    compare(10, &[3]);
}

#[test]
#[ignore = "takes minutes; the first cases run by default"]
fn all_recorded_texts_and_rounds() {
    compare(usize::MAX, &[2, 3, 5, 6, 7]);
}
