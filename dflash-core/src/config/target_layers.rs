//! What each layer of a target is, and the shapes that only some layers have.

use std::collections::BTreeSet;

use super::json::{MAX_LAYERS, MAX_POSITION, MAX_SIZE, Section};
use super::target::{Architecture, GatedDeltaConfig, LayerConfig, Mixer, MoeConfig};
use crate::{Error, Result};

/// The layers in order: kinds from `layer_types` (or the family's rule), sparsity from the
/// family's rule.
pub(super) fn layers(
    text: &Section<'_>,
    architecture: Architecture,
    model_type: &str,
    has_experts: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<LayerConfig>> {
    let count = text.number_in("num_hidden_layers", 1, MAX_LAYERS)?;
    let count = text.required("num_hidden_layers", count)?;
    let types = text.texts("layer_types")?;
    if let Some(types) = &types
        && types.len() != count
    {
        return Err(text.error(
            "layer_types",
            format!("{} entries for {count} layers", types.len()),
        ));
    }
    let mixers = if architecture.is_hybrid() {
        hybrid_mixers(text, count, types, notes)?
    } else {
        attention_mixers(text, architecture, model_type, count, types, notes)?
    };
    let sparse = sparsity(text, architecture, has_experts, count, notes)?;
    Ok(mixers
        .into_iter()
        .zip(sparse)
        .map(|(mixer, sparse)| LayerConfig { mixer, sparse })
        .collect())
}

/// Hybrids: `layer_types` decides, else the interval; both present must agree.
fn hybrid_mixers(
    text: &Section<'_>,
    count: usize,
    types: Option<Vec<&str>>,
    notes: &mut Vec<String>,
) -> Result<Vec<Mixer>> {
    let interval = text.size("full_attention_interval")?;
    let mixer = |full: bool| if full { Mixer::Full } else { Mixer::GatedDelta };
    let by_interval =
        |interval: usize| (0..count).map(move |i| mixer((i + 1).is_multiple_of(interval)));
    let Some(types) = types else {
        if interval.is_none() {
            notes.push("`layer_types` and `full_attention_interval` are missing; the format's default interval 4 is used".into());
        }
        return Ok(by_interval(interval.unwrap_or(4)).collect());
    };
    let mixers = types.iter().map(|name| match *name {
        "full_attention" => Ok(Mixer::Full),
        "linear_attention" => Ok(Mixer::GatedDelta),
        other => Err(text.error(
            "layer_types",
            format!("expected full_attention or linear_attention, found `{other}`"),
        )),
    });
    let mixers = mixers.collect::<Result<Vec<_>>>()?;
    if let Some(interval) = interval
        && !by_interval(interval).eq(mixers.iter().copied())
    {
        return Err(text.error(
            "layer_types",
            format!("contradicts full_attention_interval, which is {interval}"),
        ));
    }
    Ok(mixers)
}

/// Attention-only families: full, or sliding where the family slides.
fn attention_mixers(
    text: &Section<'_>,
    architecture: Architecture,
    model_type: &str,
    count: usize,
    types: Option<Vec<&str>>,
    notes: &mut Vec<String>,
) -> Result<Vec<Mixer>> {
    let window = text.number_in("sliding_window", 1, MAX_POSITION)?;
    let in_use = text.boolean("use_sliding_window")?;
    if model_type == "mistral" && window.is_some() {
        return Err(Error::unsupported("mistral with a sliding_window")
            .with_hint("versions without a window (`sliding_window` null) are supported"));
    }
    if architecture == Architecture::Qwen3Moe && in_use == Some(true) {
        return Err(Error::unsupported("qwen3_moe with use_sliding_window")
            .with_hint("implementations differ on which of its layers slide"));
    }
    let slides = match types {
        Some(types) => {
            let slides = types.iter().map(|name| match *name {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => Err(text.error(
                    "layer_types",
                    format!("expected full_attention or sliding_attention, found `{other}`"),
                )),
            });
            slides.collect::<Result<Vec<_>>>()?
        }
        // Qwen3's own rule for configurations without the list.
        None if architecture == Architecture::Qwen3 && in_use == Some(true) => {
            let first = text.number_in("max_window_layers", 0, MAX_SIZE)?;
            let first = text.required("max_window_layers", first)?;
            (0..count).map(|i| i >= first).collect()
        }
        None => {
            if window.is_some() && in_use != Some(false) {
                notes.push("`sliding_window` is ignored: no layer is said to slide".into());
            }
            vec![false; count]
        }
    };
    let switched_off =
        architecture != Architecture::Llama && in_use != Some(true) || in_use == Some(false);
    if switched_off && slides.contains(&true) {
        notes.push("`layer_types` has sliding layers but `use_sliding_window` is not true; they see everything".into());
        return Ok(vec![Mixer::Full; count]);
    }
    let mixer = |slides: bool| {
        if !slides {
            return Ok(Mixer::Full);
        }
        Ok(Mixer::Sliding {
            window: text.required("sliding_window", window)?,
        })
    };
    slides.into_iter().map(mixer).collect()
}

fn sparsity(
    text: &Section<'_>,
    architecture: Architecture,
    has_experts: bool,
    count: usize,
    notes: &mut Vec<String>,
) -> Result<Vec<bool>> {
    if !has_experts {
        return Ok(vec![false; count]);
    }
    let step = text.size("decoder_sparse_step")?.unwrap_or(1);
    let dense: BTreeSet<usize> = text
        .indices("mlp_only_layers")?
        .unwrap_or_default()
        .into_iter()
        .collect();
    if architecture == Architecture::Qwen3Moe {
        return Ok((0..count)
            .map(|i| !dense.contains(&i) && (i + 1).is_multiple_of(step))
            .collect());
    }
    if step != 1 || !dense.is_empty() {
        notes.push("`decoder_sparse_step` and `mlp_only_layers` do not apply to this family; every layer has experts".into());
    }
    Ok(vec![true; count])
}

/// The experts, in the families that have some.
pub(super) fn moe(
    text: &Section<'_>,
    architecture: Architecture,
    notes: &mut Vec<String>,
) -> Result<Option<MoeConfig>> {
    let experts = text.number_in("num_experts", 0, MAX_SIZE)?;
    let experts = match architecture {
        Architecture::Qwen3Moe | Architecture::Qwen35Moe => {
            text.required("num_experts", experts)?
        }
        _ => match experts {
            None | Some(0) => return Ok(None),
            Some(n) => {
                let reason = format!(
                    "{n} experts in the dense architecture `{}`; expected `{}_moe`",
                    architecture.name(),
                    architecture.name()
                );
                return Err(text.error("num_experts", reason));
            }
        },
    };
    if experts == 0 {
        if architecture == Architecture::Qwen35Moe {
            return Err(text.error("num_experts", "expected at least 1"));
        }
        notes.push("`num_experts` is 0; every layer is dense".into());
        return Ok(None);
    }
    let top_k = text.need_size("num_experts_per_tok")?;
    if top_k > experts {
        return Err(text.error(
            "num_experts_per_tok",
            format!("{top_k} of only {experts} experts"),
        ));
    }
    let norm_topk = text.boolean("norm_topk_prob")?;
    let (norm_topk, shared_intermediate_size) = match architecture {
        Architecture::Qwen35Moe => (
            norm_topk.unwrap_or(true),
            Some(text.need_size("shared_expert_intermediate_size")?),
        ),
        _ => (text.required("norm_topk_prob", norm_topk)?, None),
    };
    let intermediate_size = text.need_size("moe_intermediate_size")?;
    Ok(Some(MoeConfig {
        experts,
        top_k,
        intermediate_size,
        norm_topk,
        shared_intermediate_size,
    }))
}

/// The gated delta layers' shape. Every key is required: implementations disagree on defaults.
pub(super) fn gated_delta(text: &Section<'_>) -> Result<GatedDeltaConfig> {
    let config = GatedDeltaConfig {
        key_heads: text.need_size("linear_num_key_heads")?,
        value_heads: text.need_size("linear_num_value_heads")?,
        key_dim: text.need_size("linear_key_head_dim")?,
        value_dim: text.need_size("linear_value_head_dim")?,
        conv_kernel: text.need_size("linear_conv_kernel_dim")?,
    };
    if !config.value_heads.is_multiple_of(config.key_heads) {
        return Err(text.error(
            "linear_num_value_heads",
            format!(
                "{} is not a multiple of the {} key heads",
                config.value_heads, config.key_heads
            ),
        ));
    }
    if config.conv_kernel < 2 {
        return Err(text.error("linear_conv_kernel_dim", "expected at least 2"));
    }
    Ok(config)
}
