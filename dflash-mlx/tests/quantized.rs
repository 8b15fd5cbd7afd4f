//! Drafts quantized at load, and drafts of quantized targets, on MLX.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::{Path, PathBuf};

use dflash_core::DType;
use dflash_core::backend::factory::DeviceClass;
use dflash_core::load::LoadRequest;
use dflash_core::testing::quantized;
use dflash_mlx::{Mlx, Place};

fn backend() -> Mlx {
    Mlx::new(Place::Processor, DType::F32)
}

fn tests(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../dflash-core/tests")
        .join(name)
}

fn none(found: dflash_core::Result<Vec<String>>) {
    let found = found.expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Field case 7: the bits asked for are those used; the text is that of plain decoding.
#[test]
fn trained_drafts_keep_their_texts() {
    let load = |request: &LoadRequest| {
        dflash_mlx::load(&LoadRequest {
            device: Some(DeviceClass::Cpu),
            dtype: Some(DType::F32),
            ..request.clone()
        })
    };
    let allowed = [
        ("w8", Some("w8a32:gs64"), 1.1),
        ("w4:gs32", Some("w4a32:gs32"), 1.5),
    ];
    none(quantized::check_nano(&load, &tests("nano"), 2, &allowed));
}

/// Field cases 2 and 7: the codes are what is computed with, at every width, also where f16 would overflow.
#[test]
fn codes_are_what_is_computed_with() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_codes(&backend(), scratch.path()));
}

/// Field case 8: files in f32, bf16 and f16 are quantized alike.
#[test]
fn file_formats_agree() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_formats(&backend(), scratch.path()));
}

/// Field case 6: a quantized embedding and head, tied or not, are borrowed as they are.
#[test]
fn quantized_embeddings_are_borrowed() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_borrowed(
        &backend(),
        &tests("golden"),
        scratch.path(),
    ));
}
