//! A target's description.

use dflash::{BackendChoice, Support, factories, model_info, pick};
use dflash_core::backend::Implementation;
use dflash_core::backend::factory::BackendFactory;
use dflash_core::config::{Mixer, TargetConfig};
use dflash_core::load::ModelFiles;
use dflash_core::models::ModelInfo;

use super::document::{Backend, Document, Experts, Kind, Operations, Picked, Target, TargetLayer};
use super::memory;
use crate::args::InspectArgs;
use crate::failure::Failure;

pub(super) fn describe(
    args: &InspectArgs,
    files: &ModelFiles,
    config: TargetConfig,
) -> Result<Document, Failure> {
    let tokenizer = files.tokenizer()?;
    let info = model_info(files, config);
    let config = &info.config;
    let factories = factories();
    let picked = pick(&factories, &BackendChoice::Auto, None, &info).ok();
    let target = Target {
        model_type: config.model_type.clone(),
        hidden_size: config.hidden_size,
        vocab_size: config.vocab_size,
        context: config.max_position_embeddings,
        layers: config
            .layers
            .iter()
            .map(|l| layer(l.mixer, l.sparse))
            .collect(),
        heads: config.attention.heads,
        kv_heads: config.attention.kv_heads,
        head_dim: config.attention.head_dim,
        rope_theta: config.attention.rope.theta,
        rope_dims: config.attention.rope.dims,
        experts: config.moe.map(|m| Experts {
            count: m.experts,
            top_k: m.top_k,
            shared: m.shared_intermediate_size.is_some(),
        }),
        end_ids: config.eos_token_ids.clone(),
        backends: factories
            .iter()
            .map(|f| backend(f.as_ref(), &info))
            .collect(),
        picked: picked.map(|(factory, reason)| Picked {
            backend: factory.name(),
            reason,
        }),
    };
    let (tokens, chat_template) = super::tokens(tokenizer.as_ref());
    Ok(Document {
        reference: args.reference.clone(),
        role: "target",
        architecture: config.architecture.name(),
        kind: Kind::Target(Box::new(target)),
        quantization: super::quantization(config.quantization.as_ref()),
        tensors: super::tensors(files, args.tensors),
        tokenizer: tokens,
        chat_template,
        memory: memory::of_target(config),
        notes: super::notes(files, &config.notes, tokenizer.as_ref()),
    })
}

fn layer(mixer: Mixer, experts: bool) -> TargetLayer {
    let (kind, window, cache, can_trim) = match mixer {
        Mixer::Full => ("full_attention", None, "kv", true),
        // A window that has moved has dropped rows that an earlier position would see.
        Mixer::Sliding { window } => ("sliding_attention", Some(window), "kv", false),
        Mixer::GatedDelta => ("gated_delta", None, "recurrent", false),
    };
    TargetLayer {
        kind,
        window,
        cache,
        can_trim,
        experts,
    }
}

fn backend(factory: &dyn BackendFactory, info: &ModelInfo) -> Backend {
    let (support, reason) = match factory.supports(info) {
        Support::Native => ("native", None),
        Support::Converted(how) => ("converted", Some(how)),
        Support::Refused(why) => ("refused", Some(why)),
    };
    let mut operations = Operations::default();
    for (op, implementation) in factory.operations() {
        match implementation {
            Implementation::Native => operations.native.push(op.name()),
            Implementation::Composite => operations.composite.push(op.name()),
        }
    }
    let devices = factory.devices().into_iter().map(|d| d.name).collect();
    Backend {
        name: factory.name(),
        devices,
        support,
        reason,
        operations,
    }
}
