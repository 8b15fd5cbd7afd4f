//! Small files made on the spot.

use std::path::Path;

use dflash_core::checkpoint::{Bytes, Checkpoint, Claims};
use dflash_core::config::{DraftConfig, TargetConfig};
use dflash_core::{Error, Result};
use serde_json::{Map, Value, json};

/// Changes to a configuration: a dotted key and its new value; `null` removes the key.
pub(super) type Changes<'a> = &'a [(&'a str, Value)];

fn apply(config: &mut Value, changes: Changes<'_>) {
    for (key, value) in changes {
        let mut place = config.as_object_mut().expect("object");
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().expect("a key");
        for part in parts {
            let inner = place.entry(part).or_insert_with(|| json!({}));
            place = inner.as_object_mut().expect("object");
        }
        if value.is_null() {
            place.remove(last);
        } else {
            place.insert(last.into(), value.clone());
        }
    }
}

/// A small valid DFlash 1 draft with everything it needs and nothing else.
pub(super) fn draft_json(changes: Changes<'_>) -> Vec<u8> {
    let mut config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3",
        "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "dflash_config": {"block_size": 8, "target_layer_ids": [1, 3], "mask_token_id": 99},
    });
    apply(&mut config, changes);
    serde_json::to_vec(&config).expect("JSON")
}

pub(super) fn draft(changes: Changes<'_>) -> Result<DraftConfig> {
    DraftConfig::parse(Path::new("config.json"), &draft_json(changes), false)
}

/// A small valid target of the family `model_type`.
pub(super) fn target_json(model_type: &str, changes: Changes<'_>) -> Vec<u8> {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 1e6,
    });
    if model_type.contains("moe") {
        let moe = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "norm_topk_prob": true});
        config.as_object_mut().expect("object").extend(object(moe));
    }
    if model_type.starts_with("qwen3_5_moe") {
        config["shared_expert_intermediate_size"] = json!(16);
    }
    if model_type.starts_with("qwen3_5") {
        let hybrid = json!({"linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "partial_rotary_factor": 0.25});
        config
            .as_object_mut()
            .expect("object")
            .extend(object(hybrid));
    }
    apply(&mut config, changes);
    serde_json::to_vec(&config).expect("JSON")
}

pub(super) fn target(model_type: &str, changes: Changes<'_>) -> Result<TargetConfig> {
    TargetConfig::parse(Path::new("config.json"), &target_json(model_type, changes))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is no object"),
    }
}

/// Fails unless the error's text or its hint contains every part.
#[track_caller]
pub(super) fn assert_says(error: &Error, parts: &[&str]) {
    let text = format!("{error} {}", error.hint().unwrap_or_default());
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// True if one of the notes contains every part.
#[track_caller]
pub(super) fn assert_noted(notes: &[String], parts: &[&str]) {
    let all = |note: &String| parts.iter().all(|part| note.contains(part));
    assert!(notes.iter().any(all), "no note with {parts:?} in {notes:?}");
}

/// A safetensors file of zeros: names with type and shape.
pub(super) fn safetensors(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let mut header = Map::new();
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let size = match *dtype {
            "F64" | "I64" => 8,
            "F32" | "U32" => 4,
            "BF16" | "F16" => 2,
            "U8" => 1,
            other => panic!("size of {other}"),
        };
        let start = end;
        end += shape.iter().product::<usize>() * size;
        header.insert(
            (*name).into(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}),
        );
    }
    raw_safetensors(&serde_json::to_string(&header).expect("JSON"), end)
}

/// A file with this header and as many bytes of zeros.
pub(super) fn raw_safetensors(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

pub(super) fn checkpoint(tensors: &[(&str, &str, &[usize])]) -> Checkpoint {
    Checkpoint::from_bytes("made.safetensors", Bytes::copied(&safetensors(tensors)))
        .expect("valid file")
}

/// Tensors of a made file: name, type and shape.
pub(super) type Tensors<'a> = &'a [(&'a str, &'a str, &'a [usize])];

/// The norm that marks the first layer of a decoder.
pub(super) const NORM: &str = "model.layers.0.input_layernorm.weight";

/// The tensors of a file, as a `qwen3` target with this `quantization` claims them.
pub(super) fn claims_with(tensors: Tensors<'_>, quantization: Value) -> Result<Claims> {
    let config = target("qwen3", &[("quantization", quantization)]).expect("valid");
    checkpoint(tensors).claims_for(&config)
}

/// The same without quantization.
pub(super) fn claims(tensors: Tensors<'_>) -> Claims {
    claims_with(tensors, Value::Null).expect("one nest")
}
