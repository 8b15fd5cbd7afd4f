//! The reference backend: drafts quantized at load, and drafts of quantized targets.

use std::path::{Path, PathBuf};

use dflash_core::backend::reference::{Reference, factory};
use dflash_core::load::{LoadRequest, ModelSource};
use dflash_core::testing::quantized;

fn tests(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

fn none(found: dflash_core::Result<Vec<String>>) {
    let found = found.expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Field case 7: the bits asked for are those used; the text is that of plain decoding.
#[test]
fn trained_drafts_keep_their_texts() {
    let allowed = [
        ("w8", Some("w8a32:gs64"), 1.1),
        ("w4:gs32", Some("w4a32:gs32"), 1.5),
    ];
    none(quantized::check_nano(
        &|request| factory().load(request),
        &tests("nano"),
        2,
        &allowed,
    ));
}

/// Field cases 2 and 7: the codes are what is computed with, at every width, also where f16 would overflow.
#[test]
fn codes_are_what_is_computed_with() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_codes(&Reference::new(), scratch.path()));
}

/// Field case 8: files in f32, bf16 and f16 are quantized alike.
#[test]
fn file_formats_agree() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_formats(&Reference::new(), scratch.path()));
}

/// Field case 6: a quantized embedding and head, tied or not, are borrowed as they are.
#[test]
fn quantized_embeddings_are_borrowed() {
    let scratch = tempfile::tempdir().expect("a folder");
    none(quantized::check_borrowed(
        &Reference::new(),
        &tests("golden"),
        scratch.path(),
    ));
}

/// Rows that are not whole groups stay as stored, and a note names them.
#[test]
fn what_does_not_fit_a_group_is_noted() {
    let folder = |name: &str| ModelSource::Folder(tests("golden/qwen3").join(name));
    let load = |spec: &str| {
        let request = LoadRequest {
            draft: Some(folder("d1")),
            draft_quant: spec.parse().expect("a spec"),
            ..LoadRequest::new(folder("target"))
        };
        factory().load(&request)
    };
    // Intermediate size 80: three down projections.
    let loaded = load("w4:gs32").expect("most fits");
    let report = loaded.engine.report();
    let draft = report.draft.as_ref().expect("a draft");
    assert_eq!(draft.packed.as_ref().map(|p| p.matrices), Some(1 + 3 * 6));
    let note = |n: &&String| n.contains("down_proj") && n.contains("80");
    assert_eq!(report.notes.iter().filter(note).count(), 1, "{report:?}");
    // With groups of 128 nothing fits.
    let error = load("w4:gs128").expect_err("refused");
    assert!(error.is_usage() && error.hint().is_some(), "{error}");
}
