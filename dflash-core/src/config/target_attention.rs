//! The attention layers of a target, and the keys of other families that would change them.

use super::json::Section;
use super::keys::{Neutral, REFUSED};
use super::rope_keys;
use super::target::{Architecture, AttentionConfig};
use crate::Result;

/// Refuses keys that change the numbers of other families.
pub(super) fn refuse_foreign_keys(text: &Section<'_>) -> Result<()> {
    for activation in ["hidden_act", "hidden_activation", "mlp_hidden_act"] {
        match text.text(activation)? {
            None | Some("silu" | "swish") => {}
            Some(other) => {
                return Err(text
                    .refused(activation, other)
                    .with_hint("these decoders are built with `silu`"));
            }
        }
    }
    for (key, neutral) in REFUSED {
        let Some(value) = text.value(key) else {
            continue;
        };
        let nothing = match neutral {
            Neutral::Off => {
                value.as_bool() == Some(false)
                    || value.as_f64() == Some(0.0)
                    || value.as_array().is_some_and(Vec::is_empty)
            }
            Neutral::One => value.as_f64() == Some(1.0),
        };
        if !nothing {
            return Err(text
                .refused(key, value.clone())
                .with_hint("it changes what the model computes, so it is not ignored"));
        }
    }
    Ok(())
}

/// The attention layers' shape.
pub(super) fn attention(
    text: &Section<'_>,
    architecture: Architecture,
    hidden_size: usize,
    max_positions: usize,
    notes: &mut Vec<String>,
) -> Result<AttentionConfig> {
    let heads = text.need_size("num_attention_heads")?;
    let kv_heads = match text.size("num_key_value_heads")? {
        None if architecture == Architecture::Llama => heads,
        found => text.required("num_key_value_heads", found)?,
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(text.error(
            "num_key_value_heads",
            format!("{kv_heads} does not divide the {heads} query heads"),
        ));
    }
    let head_dim = match text.size("head_dim")? {
        None if architecture == Architecture::Llama && hidden_size.is_multiple_of(heads) => {
            hidden_size / heads
        }
        None if architecture == Architecture::Llama => {
            return Err(text.error(
                "head_dim",
                format!("missing, and {heads} heads do not divide hidden_size {hidden_size}"),
            ));
        }
        found => text.required("head_dim", found)?,
    };
    let hybrid = architecture.is_hybrid();
    if hybrid {
        if text.boolean("attn_output_gate")? == Some(false) {
            return Err(text.refused("attn_output_gate", false));
        }
        match text.text("output_gate_type")? {
            None | Some("sigmoid" | "swish" | "silu") => {}
            Some(other) => return Err(text.refused("output_gate_type", other)),
        }
    }
    let keys = rope_keys::read(text, Some(max_positions), notes)?;
    let theta = match keys.theta {
        None if architecture == Architecture::Llama => {
            notes.push("`rope_theta` is missing; the format's default 10000 is used".into());
            1e4
        }
        found => text.required("rope_theta", found)?,
    };
    let partial = match keys.partial {
        Some(partial) if !hybrid && partial != 1.0 => {
            return Err(text.refused("partial_rotary_factor", partial));
        }
        None if hybrid => {
            notes.push(
                "`partial_rotary_factor` is missing; the format's default 0.25 is used".into(),
            );
            0.25
        }
        found => found.unwrap_or(1.0),
    };
    Ok(AttentionConfig {
        heads,
        kv_heads,
        head_dim,
        qk_norm: architecture != Architecture::Llama,
        bias: text.boolean("attention_bias")?.unwrap_or(false),
        output_gate: hybrid,
        rope: rope_keys::rope(text, theta, head_dim, partial, keys.scaling)?,
    })
}
