//! Candle on the processor on the small trained model: every recorded text and round, and long texts.

use std::path::Path;

use dflash_candle::CandleCpu;
use dflash_core::testing::nano::{check, check_long};

fn folder() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../dflash-core/tests/nano"
    ))
}

#[test]
fn all_recorded_texts_and_rounds() {
    let backend = CandleCpu::new(2);
    let found = check(&backend, folder(), usize::MAX, &[2, 3, 5, 6, 7]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_thousand_tokens_with_and_without_a_draft() {
    let backend = CandleCpu::new(2);
    let blocks = [2, 3, 4, 5, 6, 7, 8];
    let found = check_long(&backend, folder(), 1000, &blocks, &[0.0, 1.0]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}
