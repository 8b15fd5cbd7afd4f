//! What `dflash inspect` tells about targets and drafts.

mod common;

use common::{generate, golden, run};
use serde_json::{Value, json};

fn inspect(args: &[&str]) -> Value {
    let ran = run(&[&["inspect", "--json"], args].concat());
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("one JSON object")
}

#[test]
fn the_demonstration_target() {
    let object = inspect(&["demo"]);
    assert_eq!(
        (&object["role"], &object["architecture"]),
        (&json!("target"), &json!("qwen3_5"))
    );
    let kinds: Vec<_> = object["layers"]
        .as_array()
        .expect("layers")
        .iter()
        .map(|l| (l["kind"].clone(), l["can_trim"].clone()))
        .collect();
    assert_eq!(kinds.len(), 8);
    assert_eq!(kinds[0], (json!("gated_delta"), json!(false)));
    assert_eq!(kinds[3], (json!("full_attention"), json!(true)));
    assert_eq!(object["end_ids"], json!([2, 0]));
    assert_eq!(object["tensors"]["count"], 108);
    assert_eq!(object["tensors"].get("list"), None);
    assert_eq!(object["tokenizer"]["ids"], 1024);
    assert!(
        object["chat_template"]["bytes"]
            .as_u64()
            .is_some_and(|n| n > 0)
    );
    let backends = object["backends"].as_array().expect("backends");
    let reference = backends
        .iter()
        .find(|b| b["name"] == "reference")
        .expect("always built in");
    assert_eq!(
        (&reference["support"], &reference["devices"]),
        (&json!("native"), &json!(["cpu"]))
    );
    assert!(
        reference["operations"]["native"]
            .as_array()
            .is_some_and(|ops| ops.contains(&json!("gated_delta")))
    );
    assert_eq!(
        object["picked"]["backend"], backends[0]["name"],
        "the first runs it as it is"
    );
}

#[test]
fn memory_is_what_a_run_takes() {
    let memory = inspect(&["demo"])["memory"].clone();
    assert_eq!(memory[0]["context"], 1024);
    assert_eq!(
        memory
            .as_array()
            .and_then(|m| m.last())
            .map(|m| &m["context"]),
        Some(&json!(4096))
    );
    let ran = generate(&["x", "--max-tokens", "3"]);
    assert_eq!(
        memory[0]["recurrent_bytes"],
        ran["cache"]["recurrent_bytes"]
    );
    // 2 layers, keys and values of 2 heads with 64 numbers of 4 bytes.
    assert_eq!(memory[0]["kv_bytes"], 1024 * 2 * 2 * 2 * 64 * 4);
    // A draft that slides stops growing.
    let draft = inspect(&["demo:d2"])["memory"].clone();
    assert_eq!(draft[0]["kv_bytes"], draft[1]["kv_bytes"]);
}

#[test]
fn drafts() {
    let object = inspect(&["demo:d1"]);
    assert_eq!(
        (&object["role"], &object["architecture"]),
        (&json!("draft"), &json!("dflash"))
    );
    assert_eq!(
        (&object["block_size"], &object["mask_token_id"]),
        (&json!(8), &json!(3))
    );
    assert_eq!(object["taps"], json!([1, 3, 5, 6]));
    assert_eq!(
        object["layers"],
        json!([{"window": 128, "causal": false}, {"window": null, "causal": false}])
    );
    assert_eq!(object["selector"], Value::Null);
    let second = inspect(&["demo:d2"]);
    assert_eq!(
        (&second["architecture"], &second["selector"]["candidates"]),
        (&json!("dflash2"), &json!(8))
    );
}

#[test]
fn folders_with_quantized_and_sliding_models() {
    let quantized = inspect(&[&golden("qwen3.5-moe/mlx-4bit")]);
    assert_eq!(
        (
            &quantized["quantization"]["bits"],
            &quantized["quantization"]["group"]
        ),
        (&json!(4), &json!(32))
    );
    assert_eq!(
        (
            &quantized["experts"]["count"],
            &quantized["experts"]["shared"]
        ),
        (&json!(8), &json!(true))
    );
    assert_eq!(quantized["tokenizer"], Value::Null);
    let sliding = inspect(&[&golden("qwen3-swa/target")]);
    assert_eq!(
        (
            &sliding["layers"][0]["kind"],
            &sliding["layers"][0]["window"]
        ),
        (&json!("sliding_attention"), &json!(8))
    );
}

#[test]
fn text_and_tensors() {
    let ran = run(&["inspect", "demo", "--tensors"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in [
        "qwen3_5",
        "0-2, 4-6: gated delta",
        "3, 7: full attention",
        "backend ",
        "caches ",
        "embed_tokens.weight BF16 [1024, 192]",
    ] {
        assert!(ran.out.contains(part), "`{part}` is not in {}", ran.out);
    }
    assert_eq!(
        ran.out
            .lines()
            .filter(|l| l.starts_with("tensor  "))
            .count(),
        108
    );
    let listed = inspect(&["demo", "--tensors"]);
    assert_eq!(
        listed["tensors"]["list"].as_array().map(Vec::len),
        Some(108)
    );
    assert!(run(&["inspect", "demo:d2"]).out.contains("mask token"));
}
