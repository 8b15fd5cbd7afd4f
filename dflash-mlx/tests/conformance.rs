//! Every operation of MLX against the reference backend.
#![cfg(any(target_os = "macos", feature = "host"))]

use dflash_core::DType;
use dflash_core::testing::conformance;
use dflash_mlx::{Mlx, Place};

fn differences(dtype: DType, expected: &[(&str, &str)]) {
    differences_at(Place::Processor, dtype, expected);
}

fn differences_at(place: Place, dtype: DType, expected: &[(&str, &str)]) {
    let failures = conformance::check(&Mlx::new(place, dtype));
    if let Err(problems) = conformance::expect(&failures, expected) {
        panic!("{dtype}: {problems}\n{failures:#?}");
    }
}

/// A result smaller than the format's numbers, as are those of -30 in f16.
const TINY: (&str, &str) = ("unary", "Softplus of -95");

#[test]
fn operations_equal_the_reference() {
    differences(DType::F32, &[TINY]);
}

/// A bias that cancels what a product has rounded.
const CANCELLED: (&str, &str) = ("linear", "bf16 weight [1, 1], 1 rows");

#[test]
fn half_formats_equal_the_reference_within_their_rounding() {
    differences(DType::Bf16, &[TINY, CANCELLED]);
    let f16 = [
        TINY,
        CANCELLED,
        ("unary", "Silu of -30"),
        ("unary", "Sigmoid of -30"),
        ("unary", "Softplus of -30"),
    ];
    differences(DType::F16, &f16);
}

/// What is queued for a GPU is computed here by the processor, whose products of half formats sum in them.
#[test]
fn the_path_for_a_gpu_equals_the_reference() {
    differences_at(Place::Metal, DType::F32, &[TINY]);
}
