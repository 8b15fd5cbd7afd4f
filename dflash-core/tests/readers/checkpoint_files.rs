//! Folders, indices and headers, sound and damaged.

use std::path::Path;

use dflash_core::checkpoint::{Bytes, Checkpoint};
use dflash_core::{Error, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::{assert_noted, assert_says, raw_safetensors, safetensors};

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("written");
    }
    folder
}

fn open(files: &[(&str, Vec<u8>)]) -> Result<Checkpoint> {
    Checkpoint::open(folder(files).path())
}

fn index(map: Value) -> Vec<u8> {
    serde_json::to_vec(&json!({"metadata": {}, "weight_map": map})).expect("JSON")
}

#[test]
fn folders_without_an_index() {
    let a = safetensors(&[("a", "F32", &[1])]);
    let b = safetensors(&[("b", "F32", &[2])]);
    let both = open(&[
        ("model-00001-of-00002.safetensors", a.clone()),
        ("model-00002-of-00002.safetensors", b),
    ])
    .expect("two shards");
    assert_eq!(
        (
            both.names().collect::<Vec<_>>(),
            both.total_bytes(),
            both.len()
        ),
        (vec!["a", "b"], 12, 2)
    );
    let missing = open(&[("model-00001-of-00002.safetensors", a.clone())]).expect_err("incomplete");
    assert_says(&missing, &["1 of 2", "model-00002-of-00002.safetensors"]);
    let twice = open(&[
        ("model.safetensors", a.clone()),
        ("model-1.safetensors", a.clone()),
    ])
    .expect_err("twice");
    assert_says(
        &twice,
        &["tensor `a`", "model-1.safetensors", "model.safetensors"],
    );
    let extra = open(&[
        ("model.safetensors", a.clone()),
        ("mtp.safetensors", a.clone()),
    ])
    .expect("ignored");
    assert_noted(extra.notes(), &["mtp.safetensors"]);
    assert_says(&open(&[]).expect_err("empty"), &["model*.safetensors"]);
    assert_says(
        &open(&[("pytorch_model.bin", vec![])]).expect_err("pickle"),
        &["pickle"],
    );
    assert_says(&open(&[("m.gguf", vec![])]).expect_err("gguf"), &["m.gguf"]);
    assert!(matches!(
        Checkpoint::open(Path::new("/nowhere/at/all")),
        Err(Error::NotFound { .. })
    ));
    let file = folder(&[("model.safetensors", a)]);
    assert!(matches!(
        Checkpoint::open(&file.path().join("model.safetensors")),
        Err(Error::NotFound { .. })
    ));
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let (a, b) = (
        safetensors(&[("a", "F32", &[1])]),
        safetensors(&[("b", "F32", &[1])]),
    );
    let with = |map: Value| {
        open(&[
            ("x.safetensors", a.clone()),
            ("y.safetensors", b.clone()),
            ("model.safetensors.index.json", index(map)),
        ])
    };
    assert_eq!(
        with(json!({"a": "x.safetensors", "b": "y.safetensors"}))
            .expect("agrees")
            .len(),
        2
    );
    let part = with(json!({"a": "x.safetensors"})).expect("a part");
    assert_eq!(part.len(), 1);
    assert_noted(part.notes(), &["y.safetensors"]);
    let absent =
        with(json!({"a": "x.safetensors", "c": "x.safetensors"})).expect_err("not in the shard");
    assert_says(&absent, &["`c`", "no file has it"]);
    let moved = with(json!({"a": "y.safetensors", "b": "x.safetensors"})).expect_err("swapped");
    assert_says(&moved, &["`a`", "x.safetensors"]);
    assert_says(
        &with(json!({"a": "z.safetensors"})).expect_err("no such shard"),
        &["z.safetensors", "missing"],
    );
    for evil in [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/x.safetensors",
        "a\\x.safetensors",
        "..",
        "x.bin",
        "",
        ".x.safetensors",
        "C:x.safetensors",
    ] {
        let error = with(json!({"a": evil})).expect_err("not a plain name");
        assert_says(&error, &["tensor `a`", "same folder"]);
    }
    for map in [json!({}), json!([]), json!({"a": 3}), Value::Null] {
        assert!(with(map).is_err());
    }
}

#[test]
fn damaged_headers_are_errors() {
    let entry = |name: &str, dtype: &str, shape: &str, range: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}"#)
    };
    let parse = |entries: &[String], bytes| {
        Checkpoint::from_bytes(
            "made",
            Bytes::copied(&raw_safetensors(
                &format!("{{{}}}", entries.join(",")),
                bytes,
            )),
        )
    };
    assert!(parse(&[entry("a", "F32", "[1]", "[0,4]")], 4).is_ok());
    for (what, entries, bytes) in [
        ("truncated data", vec![entry("a", "F32", "[1]", "[0,4]")], 3),
        ("data left over", vec![entry("a", "F32", "[1]", "[0,4]")], 5),
        (
            "a shape that does not fit",
            vec![entry("a", "F32", "[2]", "[0,4]")],
            4,
        ),
        (
            "an overflowing shape",
            vec![entry("a", "F32", "[4294967296,4294967296,2]", "[0,4]")],
            4,
        ),
        (
            "a negative size",
            vec![entry("a", "F32", "[-1]", "[0,4]")],
            4,
        ),
        (
            "offsets that go back",
            vec![entry("a", "F32", "[1]", "[4,0]")],
            4,
        ),
        (
            "overlapping tensors",
            vec![
                entry("a", "F32", "[1]", "[0,4]"),
                entry("b", "F32", "[1]", "[0,4]"),
            ],
            4,
        ),
        (
            "a gap",
            vec![
                entry("a", "F32", "[1]", "[0,4]"),
                entry("b", "F32", "[1]", "[8,12]"),
            ],
            12,
        ),
        (
            "offsets outside",
            vec![entry(
                "a",
                "F32",
                "[1]",
                "[18446744073709551612,18446744073709551616]",
            )],
            4,
        ),
        (
            "an unknown type",
            vec![entry("a", "F99", "[1]", "[0,4]")],
            4,
        ),
        (
            "one name twice",
            vec![
                entry("a", "F32", "[1]", "[0,4]"),
                entry("a", "F32", "[1]", "[0,4]"),
            ],
            4,
        ),
    ] {
        let error = parse(&entries, bytes).expect_err(what);
        assert_eq!(error.code(), "E-CHECKPOINT", "{what}: {error}");
    }
    for (what, file) in [
        ("empty", vec![]),
        ("too short", vec![1, 2, 3]),
        (
            "a header longer than the file",
            [u64::MAX.to_le_bytes().to_vec(), b"{}".to_vec()].concat(),
        ),
        (
            "a header that claims 90 MB",
            [90_000_000_u64.to_le_bytes().to_vec(), b"{}".to_vec()].concat(),
        ),
        ("no JSON", raw_safetensors("nonsense", 0)),
        ("no object", raw_safetensors("[]", 0)),
        (
            "no UTF-8",
            [4_u64.to_le_bytes().to_vec(), vec![0xff; 4]].concat(),
        ),
    ] {
        assert!(
            Checkpoint::from_bytes("made", Bytes::copied(&file)).is_err(),
            "{what}"
        );
        assert!(open(&[("model.safetensors", file)]).is_err(), "{what}");
    }
    assert!(
        open(&[("model.safetensors", raw_safetensors("{}", 0))])
            .expect("no tensors")
            .is_empty()
    );
}

/// A device file or a pipe is refused before it is opened: reading it would not end.
#[cfg(unix)]
#[test]
fn files_that_are_not_regular_are_errors() {
    for name in [
        "config.json",
        "model.safetensors.index.json",
        "model.safetensors",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(name)).expect("a link");
        let error = if name == "config.json" {
            dflash_core::config::TargetConfig::read(folder.path()).err()
        } else {
            Checkpoint::open(folder.path()).err()
        };
        let error = error.expect("not a file").to_string();
        assert!(
            error.contains("regular") || error.contains("not a file"),
            "{name}: {error}"
        );
    }
}
