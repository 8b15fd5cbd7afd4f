//! Shape twins of published pairs, small ones: they load, run, and their drafts change nothing.

use std::path::Path;

use dflash_core::backend::reference::Reference;
use dflash_core::checkpoint::SmallFloat;
use dflash_core::testing::twin::{NAMES, Packing, TwinOptions, check_text, write};

fn options(packing: Packing) -> TwinOptions {
    TwinOptions {
        layers: Some(4),
        packing,
        tiny: true,
        seed: 7,
    }
}

fn check(name: &str, packing: Packing) {
    let scratch = tempfile::tempdir().expect("a folder");
    let bytes = write(name, &options(packing), scratch.path()).expect("it is written");
    assert!(bytes < 60_000_000, "{name}: {bytes} bytes");
    let (found, _) = check_text(&Reference::new(), scratch.path())
        .unwrap_or_else(|e| panic!("{name}, {packing:?}: {e}"));
    assert!(found.is_empty(), "{name}, {packing:?}: {found:?}");
}

#[test]
fn as_published() {
    for name in NAMES {
        check(name, Packing::None);
    }
}

#[test]
fn packed_in_four_and_eight_bits() {
    for name in NAMES {
        for bits in [4, 8] {
            check(name, Packing::Affine { bits });
        }
    }
}

#[test]
fn packed_in_small_floats() {
    for (name, format) in NAMES.iter().zip(SmallFloat::ALL.iter().cycle()) {
        check(name, Packing::SmallFloat(*format));
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let file = |seed: u64, folder: &Path| {
        let options = TwinOptions {
            layers: Some(1),
            seed,
            ..options(Packing::Affine { bits: 4 })
        };
        write("Qwen3.8-27B", &options, folder).expect("it is written");
        std::fs::read(folder.join("target/model.safetensors")).expect("a file")
    };
    let scratch = tempfile::tempdir().expect("a folder");
    let first = file(1, scratch.path());
    assert_eq!(first, file(1, scratch.path()));
    assert_ne!(first, file(2, scratch.path()));
}

#[test]
fn unknown_names_are_refused() {
    let scratch = tempfile::tempdir().expect("a folder");
    let error = write("qwen9", &options(Packing::None), scratch.path()).expect_err("unknown");
    assert!(error.to_string().contains("qwen3.8-27b"), "{error}");
    let none = TwinOptions {
        layers: Some(0),
        ..options(Packing::None)
    };
    assert!(write("qwen3-8b", &none, scratch.path()).is_err_and(|e| e.is_usage()));
}
