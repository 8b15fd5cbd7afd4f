//! Every way to be refused: exit code, code of the error, and a hint where one is known.

mod common;

use std::path::Path;

use common::{core_tests, dflash, ended, golden, run};

/// Runs and checks exit code, the shape of the message and that it contains `parts`.
fn refused(args: &[&str], code: i32, name: &str, parts: &[&str]) {
    let ran = run(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{args:?}");
    let start = format!("error[{name}]: ");
    assert!(
        ran.err.lines().any(|l| l.starts_with(&start)),
        "{args:?}: {}",
        ran.err
    );
    assert!(
        ran.err.lines().any(|l| l.starts_with("hint: ")),
        "{args:?}: {}",
        ran.err
    );
    for part in parts {
        assert!(
            ran.err.contains(part),
            "{args:?}: `{part}` is not in {}",
            ran.err
        );
    }
}

#[test]
fn options_out_of_range() {
    let cases: &[(&[&str], &str)] = &[
        (&["--max-tokens", "0"], "max-tokens"),
        (&["--prefill-chunk", "0"], "prefill-chunk"),
        (&["--context", "0"], "context"),
        (&["--context", "5000"], "longest sequence of 4096"),
        (&["--block-size", "0"], "block-size"),
        (&["--block-size", "9"], "trained for"),
        (&["--temperature", "-1"], "temperature"),
        (&["--temperature", "nan"], "temperature"),
        (&["--temperature", "inf"], "temperature"),
        (&["--top-p", "0"], "top-p"),
        (&["--top-p", "1.5"], "top-p"),
        (&["--min-p", "-0.1"], "min-p"),
        (&["--repetition-penalty", "0"], "repetition-penalty"),
        (&["--draft-window", "1"], "draft-window"),
        (&["--threads", "0"], "threads"),
        (&["--stop", ""], "stop"),
        (&["--adaptive", "on"], "adaptive"),
        (&["--reasoning", "a lot"], "reasoning"),
        (&["--require-draft", "--draft", "none"], "require-draft"),
        (&["--require-draft", "--block-size", "1"], "require-draft"),
        (&["--dtype", "f16"], "dtype"),
        (&["--dtype", "bf16"], "dtype"),
    ];
    for (options, part) in cases {
        refused(
            &[&["generate", "x"], *options].concat(),
            2,
            "E-REQUEST",
            &[part],
        );
        let json = run(&[&["generate", "x", "--json"], *options].concat());
        assert_eq!((json.code, json.out.as_str()), (2, ""), "{options:?}");
        assert!(
            json.err.contains("error[E-REQUEST]"),
            "{options:?}: {}",
            json.err
        );
    }
}

#[test]
fn prompts_that_cannot_be_run() {
    refused(&["generate"], 2, "E-REQUEST", &["prompt"]);
    refused(&["generate", ""], 2, "E-REQUEST", &["empty"]);
    refused(
        &["generate", "--prompt-ids", ""],
        2,
        "E-REQUEST",
        &["empty"],
    );
    refused(
        &["generate", "--prompt-ids", "1,x"],
        2,
        "E-REQUEST",
        &["`x`"],
    );
    refused(
        &["generate", "--prompt-ids", "1,1024"],
        2,
        "E-REQUEST",
        &["1024", "vocabulary"],
    );
    let long = vec!["5"; 4096].join(",");
    refused(
        &["generate", "--prompt-ids", &long],
        2,
        "E-REQUEST",
        &["4096"],
    );
    refused(
        &["generate", "--prompt-ids", "1,2,3", "--context", "3"],
        2,
        "E-REQUEST",
        &["context"],
    );
    let target = golden("qwen3/target");
    refused(
        &["generate", "x", "--model", &target],
        2,
        "E-REQUEST",
        &["tokenizer", "--prompt-ids"],
    );
    refused(
        &[
            "generate",
            "--prompt-ids",
            "1",
            "--model",
            &target,
            "--stop",
            "x",
        ],
        2,
        "E-REQUEST",
        &["stop"],
    );
    for input in [b"".as_slice(), b"\n", b"\xff\xfe"] {
        let ran = ended(dflash().args(["generate", "-"]).write_stdin(input));
        assert_eq!(ran.code, 2, "{input:?}");
        assert!(ran.err.contains("error[E-REQUEST]: prompt"), "{}", ran.err);
    }
}

#[test]
fn command_lines_that_make_no_sense() {
    let cases: &[&[&str]] = &[
        &["generate", "x", "--no-such-option"],
        &["generate", "x", "--max-tokens", "many"],
        &["generate", "x", "--top-k", "-1"],
        &["generate", "x", "--device", "tpu"],
        &["generate", "x", "--dtype", "f64"],
        &["generate", "x", "--prompt-ids", "1"],
        &["generate", "x", "--raw", "--system", "y"],
        &["inspect"],
        &["no-such-command"],
    ];
    for args in cases {
        refused(args, 2, "E-USAGE", &[]);
    }
    assert_eq!(run(&[]).code, 2);
    for help in [&["--help"][..], &["generate", "--help"], &["--version"]] {
        let ran = run(help);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{help:?}");
        assert!(!ran.out.is_empty());
    }
}

#[test]
fn backends_and_devices_that_are_not_there() {
    for name in ["no-such-backend", "mlx"] {
        refused(
            &["generate", "x", "--backend", name],
            2,
            "E-UNAVAILABLE",
            &[name, "reference", "feature"],
        );
    }
    refused(
        &["generate", "x", "--backend", "reference", "--device", "gpu"],
        2,
        "E-UNAVAILABLE",
        &["gpu"],
    );
}

#[test]
fn models_that_are_not_there() {
    refused(
        &["generate", "x", "--model", "no/such-model"],
        2,
        "E-NOT-FOUND",
        &["no/such-model"],
    );
    refused(
        &["generate", "x", "--draft", "no-such-draft"],
        2,
        "E-NOT-FOUND",
        &["no-such-draft"],
    );
    refused(
        &["generate", "x", "--draft", "demo:d3"],
        2,
        "E-NOT-FOUND",
        &["demo:d1"],
    );
    refused(
        &["inspect", "no-such-model"],
        2,
        "E-NOT-FOUND",
        &["no-such-model"],
    );
    refused(
        &["generate", "x", "--chat-template", "no-such-file"],
        2,
        "E-REQUEST",
        &["chat-template", "no-such-file"],
    );
    refused(
        &["generate", "x", "--trace", "no-such-folder/trace.jsonl"],
        2,
        "E-REQUEST",
        &["trace", "no-such-folder"],
    );
    let file = core_tests()
        .join("nano/expected.json")
        .display()
        .to_string();
    refused(
        &["generate", "x", "--model", &file],
        2,
        "E-NOT-FOUND",
        &["file"],
    );
}

#[test]
fn pairs_that_do_not_fit() {
    refused(
        &["generate", "x", "--model", "demo:d1"],
        1,
        "E-PAIR-ROLE",
        &["--draft"],
    );
    refused(&["generate", "x", "--draft", "demo"], 1, "E-PAIR-ROLE", &[]);
    let (target, draft) = (golden("qwen3/target"), golden("qwen3/d2"));
    refused(
        &["generate", "--prompt-ids", "1", "--model", &draft],
        1,
        "E-PAIR-ROLE",
        &[],
    );
    refused(
        &["generate", "x", "--draft", &draft],
        1,
        "E-PAIR-HIDDEN",
        &["192"],
    );
    refused(
        &[
            "generate",
            "--prompt-ids",
            "1",
            "--model",
            &target,
            "--draft",
            "demo:d2",
        ],
        1,
        "E-PAIR-HIDDEN",
        &["192"],
    );
    refused(
        &[
            "generate",
            "--prompt-ids",
            "1",
            "--model",
            &target,
            "--require-draft",
        ],
        2,
        "E-REQUEST",
        &["--draft"],
    );
}

/// A copy of a golden target whose files can be spoilt.
fn copy(to: &Path) {
    for name in ["config.json", "model.safetensors"] {
        let bytes =
            std::fs::read(Path::new(&golden("qwen3/target")).join(name)).expect("golden data");
        std::fs::write(to.join(name), bytes).expect("a copy");
    }
}

#[test]
fn checkpoints_that_are_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let generate = ["generate", "--prompt-ids", "1", "--model", path];

    let empty = run(&generate);
    assert_eq!(empty.code, 1, "{}", empty.err);
    copy(folder.path());
    assert_eq!(
        run(&[&generate[..], &["--max-tokens", "2"]].concat()).code,
        0
    );

    let weights = folder.path().join("model.safetensors");
    let whole = std::fs::read(&weights).expect("weights");
    std::fs::write(&weights, &whole[..whole.len() / 2]).expect("half of it");
    refused(&generate, 1, "E-CHECKPOINT", &["model.safetensors"]);
    refused(
        &["inspect", path],
        1,
        "E-CHECKPOINT",
        &["model.safetensors"],
    );

    copy(folder.path());
    std::fs::write(folder.path().join("config.json"), "{").expect("a broken config");
    refused(&generate, 1, "E-CONFIG", &["config.json"]);
    std::fs::write(
        folder.path().join("config.json"),
        r#"{"model_type":"gpt2"}"#,
    )
    .expect("another family");
    refused(&generate, 1, "E-UNSUPPORTED", &["gpt2"]);
}
