//! `--draft-quant` through the real binary: texts, reports and refusals.

mod common;

use std::path::{Path, PathBuf};

use common::{Case, case, generate, golden, run};
use serde_json::{Value, json};

const DRAFTS: [&str; 2] = ["demo:d1", "demo:d2"];

fn ask(case: &Case, draft: &str, options: &[&str]) -> Value {
    let mut args = case.args();
    args.extend(["--draft", draft]);
    args.extend(options);
    generate(&args)
}

fn notes(object: &Value) -> Vec<&str> {
    let notes = object["notes"].as_array().expect("a list");
    notes.iter().filter_map(Value::as_str).collect()
}

/// Field case 7: the report names the bits, the group and the activations that are used, and the text is plain decoding's.
#[test]
fn texts_stay_and_reports_say_what_is_used() {
    let case = case("quicksort");
    for draft in DRAFTS {
        for (spec, used) in [
            ("w8", "w8a32:gs64"),
            ("w4", "w4a32:gs64"),
            ("w4a32:gs32", "w4a32:gs32"),
            ("none", "none"),
        ] {
            let object = ask(&case, draft, &["--draft-quant", spec]);
            assert_eq!(object["tokens"], json!(case.tokens), "{draft} {spec}");
            assert_eq!(object["draft"]["quant"], json!(used), "{draft} {spec}");
            assert_eq!(object["draft"]["dtype"], "f32");
            assert!(
                object["draft"]["dtype_reason"]
                    .as_str()
                    .is_some_and(|r| r.contains("f32"))
            );
            assert!(
                object["accepted"].as_u64().is_some_and(|n| n > 0),
                "{object}"
            );
            assert_eq!(object["draft_active"], json!(true));
            assert!(
                notes(&object).iter().all(|n| !n.contains("a16")),
                "{object}"
            );
        }
    }
}

/// Field case 1: a width that the machine does not compute is noted, and f16 is refused.
#[test]
fn activations_that_are_not_used_are_noted() {
    let case = case("quicksort");
    let object = ask(&case, "demo:d2", &["--draft-quant", "w8a16"]);
    assert_eq!(object["tokens"], json!(case.tokens));
    assert_eq!(object["draft"]["quant"], "w8a32:gs64");
    let noted = |n: &&str| n.contains("activations are f32");
    assert_eq!(
        notes(&object).into_iter().filter(noted).count(),
        1,
        "{object}"
    );
    refused(
        &["--draft-quant", "w4", "--dtype", "f16"],
        "E-REQUEST",
        &["f16"],
    );
}

#[test]
fn what_has_no_effect_is_noted() {
    let case = case("quicksort");
    let object = ask(&case, "demo:d1", &["--draft-quant", "auto"]);
    assert_eq!(object["draft"]["quant"], "none");
    assert!(
        notes(&object)
            .iter()
            .any(|n| n.contains("`auto` keeps the draft as stored"))
    );
    let object = ask(&case, "none", &["--draft-quant", "w4"]);
    assert_eq!(object["draft"], Value::Null);
    assert!(
        notes(&object)
            .iter()
            .any(|n| n.contains("`--draft-quant` has no effect"))
    );
}

#[test]
fn the_quantized_bytes_are_told() {
    let ran = run(&[
        "generate",
        "Hi",
        "--max-tokens",
        "4",
        "-v",
        "--draft-quant",
        "w4",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines: Vec<_> = ran
        .err
        .lines()
        .filter(|l| l.starts_with("quantized"))
        .collect();
    assert_eq!(lines.len(), 1, "{}", ran.err);
    assert!(lines[0].contains("15 projections"), "{}", lines[0]);
}

fn refused(options: &[&str], code: &str, parts: &[&str]) {
    let ran = run(&[&["generate", "Hi"], options].concat());
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (2, ""),
        "{options:?}: {}",
        ran.err
    );
    assert!(ran.err.contains(&format!("error[{code}]: ")), "{}", ran.err);
    assert!(
        ran.err.lines().any(|l| l.starts_with("hint: ")),
        "{}",
        ran.err
    );
    for part in parts {
        assert!(
            ran.err.contains(part),
            "{options:?}: `{part}` is not in {}",
            ran.err
        );
    }
}

#[test]
fn specs_that_do_not_exist_are_refused() {
    for (spec, part) in [
        ("w3", "`3`"),
        ("4bit", "`4bit`"),
        ("w4a8", "`8`"),
        ("w4:gs16", "`gs16`"),
        ("", "``"),
        ("f16", "`f16`"),
    ] {
        refused(
            &["--draft-quant", spec],
            "E-REQUEST",
            &["draft-quant", part],
        );
    }
}

#[test]
fn a_group_that_fits_no_matrix_is_refused() {
    let (target, draft) = (golden("qwen3/target"), golden("qwen3/d1"));
    let ran = run(&[
        "generate",
        "--prompt-ids",
        "1,2,3",
        "--model",
        &target,
        "--draft",
        &draft,
        "--draft-quant",
        "w4:gs128",
    ]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("`fc`") && ran.err.contains("128"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("hint: use a smaller group"), "{}", ran.err);
}

#[test]
fn a_draft_that_is_quantized_already_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("demo/d1");
    let config = std::fs::read(source.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["quantization"] = json!({"bits": 4, "group_size": 32});
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("a file");
    write(&folder.path().join("config.json"), &config.to_string());
    let weights = "model.safetensors";
    std::fs::copy(source.join(weights), folder.path().join(weights)).expect("a copy");
    refused(
        &[
            "--draft",
            folder.path().to_str().expect("UTF-8"),
            "--draft-quant",
            "w8",
        ],
        "E-REQUEST",
        &["quantized already", "4 bits in groups of 32"],
    );
}

#[test]
fn inspect_tells_which_modules_are_quantized() {
    let ran = run(&["inspect", "demo:d2", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let object: Value = serde_json::from_str(&ran.out).expect("JSON");
    let modules = object["modules"].as_array().expect("a list");
    let quantized = |m: &&Value| m["quantizable"] == json!(true);
    let kinds = |list: Vec<&Value>| -> Vec<String> {
        list.iter()
            .map(|m| m["kind"].as_str().expect("a name").to_owned())
            .collect()
    };
    assert_eq!(
        kinds(modules.iter().collect()),
        [
            "projections",
            "norms",
            "convolutions",
            "selector",
            "codebooks"
        ]
    );
    assert_eq!(
        kinds(modules.iter().filter(quantized).collect()),
        ["projections"]
    );
    assert_eq!(modules[0]["groups"], json!([32, 64]));
    let bytes: u64 = modules.iter().filter_map(|m| m["bytes"].as_u64()).sum();
    assert_eq!(
        object["tensors"]["bytes"],
        json!(bytes),
        "every tensor has a kind"
    );
    let text = run(&["inspect", "demo:d1"]).out;
    assert!(
        text.contains("projections")
            && text.contains("`--draft-quant` quantizes them, in groups of 32, 64"),
        "{text}"
    );
}
