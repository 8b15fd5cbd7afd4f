//! Small shape twins of published pairs on Candle: the head sizes that matter, and the reference's tokens.

use dflash_candle::CandleCpu;
use dflash_core::backend::reference::Reference;
use dflash_core::checkpoint::SmallFloat;
use dflash_core::testing::twin::{NAMES, Packing, TwinOptions, check_text, write};

fn check(name: &str, packing: Packing) {
    let scratch = tempfile::tempdir().expect("a folder");
    let options = TwinOptions {
        layers: Some(4),
        packing,
        tiny: true,
        seed: 7,
    };
    write(name, &options, scratch.path()).expect("it is written");
    let (found, tokens) = check_text(&CandleCpu::new(2), scratch.path()).expect("it runs");
    assert!(found.is_empty(), "{name}, {packing:?}: {found:?}");
    let (_, expected) = check_text(&Reference::new(), scratch.path()).expect("it runs");
    assert_eq!(tokens, expected, "{name}, {packing:?}");
}

fn check_all(packing: Packing) {
    for name in NAMES {
        check(name, packing);
    }
}

#[test]
fn twins_run_and_say_what_the_reference_says() {
    check_all(Packing::None);
}

#[test]
fn twins_packed_in_four_bits() {
    check_all(Packing::Affine { bits: 4 });
}

#[test]
fn twins_packed_in_eight_bits() {
    check_all(Packing::Affine { bits: 8 });
}

#[test]
fn twins_packed_in_small_floats() {
    for (name, format) in NAMES.iter().zip(SmallFloat::ALL.iter().cycle()) {
        check(name, Packing::SmallFloat(*format));
    }
}
