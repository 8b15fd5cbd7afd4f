//! Small shape twins of published pairs in packed formats on MLX: the reference's tokens.
#![cfg(any(target_os = "macos", feature = "host"))]

use dflash_core::DType;
use dflash_core::backend::reference::Reference;
use dflash_core::checkpoint::SmallFloat;
use dflash_core::testing::twin::{NAMES, Packing, TwinOptions, check_text, write};
use dflash_mlx::{Mlx, Place};

fn check(name: &str, packing: Packing) {
    let scratch = tempfile::tempdir().expect("a folder");
    let options = TwinOptions {
        layers: Some(4),
        packing,
        tiny: true,
        seed: 7,
    };
    write(name, &options, scratch.path()).expect("it is written");
    let backend = Mlx::new(Place::Processor, DType::F32);
    let (found, tokens) = check_text(&backend, scratch.path()).expect("it runs");
    assert!(found.is_empty(), "{name}, {packing:?}: {found:?}");
    let (_, expected) = check_text(&Reference::new(), scratch.path()).expect("it runs");
    assert_eq!(tokens, expected, "{name}, {packing:?}");
}

#[test]
fn packed_in_four_bits() {
    for name in NAMES {
        check(name, Packing::Affine { bits: 4 });
    }
}

#[test]
fn packed_in_small_floats() {
    for (name, format) in NAMES.iter().zip(&SmallFloat::ALL) {
        check(name, Packing::SmallFloat(*format));
    }
}
