//! Drafts quantized at load, and drafts of quantized targets, on Candle.

use std::path::{Path, PathBuf};

use candle_core::Device;
use dflash_candle::{CandleCpu, CandleDevice};
use dflash_core::DType;
use dflash_core::backend::Chip;
use dflash_core::backend::factory::DeviceClass;
use dflash_core::load::{DraftPlan, LoadRequest, load_with};
use dflash_core::testing::quantized;

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
        dflash_candle::load(&LoadRequest {
            device: Some(DeviceClass::Cpu),
            threads: Some(2),
            ..request.clone()
        })
    };
    let allowed = [
        ("w8", Some("w8a32:gs64"), 1.05),
        ("w4", Some("w4a32:gs64"), 1.3),
        ("w4a16:gs32", Some("w4a32:gs32"), 1.3),
        ("auto", None, 1.0),
    ];
    none(quantized::check_nano(&load, &tests("nano"), 12, &allowed));
}

/// A draft with other activations than its target, as the table has it for `--dtype f32` beside a16.
#[test]
fn a_draft_has_activations_of_its_own() {
    let load = |request: &LoadRequest| {
        let target = CandleDevice::new(Device::Cpu, DType::F32);
        let plan = DraftPlan::for_request(Chip::Gpu, None, request)?;
        let plan = plan.expect("the request has a draft");
        assert_eq!(plan.dtype, DType::Bf16);
        let draft = target.with_dtype(plan.dtype);
        load_with(&target, Some((&draft, plan)), 1, request)
    };
    none(quantized::check_nano(
        &load,
        &tests("nano"),
        3,
        &[("none", None, 1.2)],
    ));
}

/// Field cases 2 and 7: the codes are what is computed with, at every width, also where f16 would overflow.
#[test]
fn codes_are_what_is_computed_with() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_codes(&CandleCpu::new(2), scratch.path()));
}

/// Field case 8: files in f32, bf16 and f16 are quantized alike.
#[test]
fn file_formats_agree() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_formats(&CandleCpu::new(2), scratch.path()));
}

/// Field case 6: a quantized embedding and head, tied or not, are borrowed as they are.
#[test]
fn quantized_embeddings_are_borrowed() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_borrowed(
        &CandleCpu::new(2),
        &tests("golden"),
        scratch.path(),
    ));
}
