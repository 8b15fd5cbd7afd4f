//! A draft that computes numbers that are not finite: speed is lost, text is not, and it is said.

mod common;

use std::path::{Path, PathBuf};

use common::{case, generate, run};
use serde_json::{Value, json};

/// A copy of the demonstration draft `d1` in which one tensor holds NaN.
fn spoilt(folder: &Path, tensor: &str) -> String {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("demo/d1");
    std::fs::copy(source.join("config.json"), folder.join("config.json")).expect("a copy");
    let mut bytes = std::fs::read(source.join("model.safetensors")).expect("weights");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let offset = |i: usize| {
        header[tensor]["data_offsets"][i]
            .as_u64()
            .expect("an offset") as usize
            + 8
            + length
    };
    for number in bytes[offset(0)..offset(1)].chunks_exact_mut(2) {
        number.copy_from_slice(&0x7fc0u16.to_le_bytes());
    }
    std::fs::write(folder.join("model.safetensors"), bytes).expect("a copy");
    folder.to_str().expect("UTF-8").to_owned()
}

#[test]
fn the_text_is_the_same_and_the_reason_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let draft = spoilt(folder.path(), "norm.weight");
    let case = case("quicksort");
    let object = generate(&[&case.prompt, "--draft", &draft]);
    assert_eq!(object["tokens"], json!(case.tokens));
    assert_eq!(
        (&object["draft_requested"], &object["draft_active"]),
        (&json!(true), &json!(false))
    );
    assert!(
        object["non_finite_drafts"].as_u64().is_some_and(|n| n >= 2),
        "{object}"
    );
    let reason = object["draft_inactive_reason"].as_str().expect("a reason");
    assert!(
        object["notes"].as_array().is_some_and(|n| n
            .iter()
            .any(|n| n.as_str().is_some_and(|n| n.contains(reason)))),
        "{object}"
    );
}

#[test]
fn a_required_draft_that_gives_up_is_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let draft = spoilt(folder.path(), "norm.weight");
    let case = case("quicksort");
    let ran = run(&[
        "generate",
        &case.prompt,
        "--draft",
        &draft,
        "--require-draft",
    ]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(ran.out.trim_end(), case.text);
    assert!(
        ran.err.contains("error[E-DRAFT-INACTIVE]: ") && ran.err.contains("hint: "),
        "{}",
        ran.err
    );
}
