//! The reference backend on the small trained model.

use std::path::Path;

use dflash_core::backend::reference::Reference;
use dflash_core::testing::nano::{check, check_long};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nano"))
}

#[test]
fn recorded_texts_and_rounds() {
    let found = check(&Reference::new(), folder(), 2, &[3]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
#[ignore = "minutes on the reference backend"]
fn all_recorded_texts_and_rounds() {
    let found = check(&Reference::new(), folder(), usize::MAX, &[2, 3, 5, 6, 7]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_long_text_with_and_without_a_draft() {
    let found = check_long(&Reference::new(), folder(), 150, &[5], &[0.0, 1.0]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
#[ignore = "minutes on the reference backend"]
fn a_thousand_tokens_with_and_without_a_draft() {
    let found =
        check_long(&Reference::new(), folder(), 1000, &[2, 5, 8], &[0.0, 1.0]).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}
