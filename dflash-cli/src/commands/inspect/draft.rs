//! A draft's description.

use std::collections::BTreeMap;

use dflash_core::config::{DraftConfig, DraftKind};
use dflash_core::draft::DraftModule;
use dflash_core::load::ModelFiles;

use super::document::{Document, Draft, DraftLayer, Kind, Module, Selector};
use super::memory;
use crate::args::InspectArgs;
use crate::failure::Failure;

pub(super) fn describe(
    args: &InspectArgs,
    files: &ModelFiles,
    config: DraftConfig,
) -> Result<Document, Failure> {
    let tokenizer = files.tokenizer()?;
    let (tokens, chat_template) = super::tokens(tokenizer.as_ref());
    let modules = modules(files, config.quantization.is_some());
    let draft = Draft {
        modules,
        block_size: config.block_size,
        taps: config.target_layer_ids.clone(),
        mask_token_id: config.mask_token_id,
        target_layers: config.num_target_layers,
        hidden_size: config.hidden_size,
        vocab_size: config.vocab_size,
        layers: config
            .layers
            .iter()
            .map(|l| DraftLayer {
                window: l.window,
                causal: l.causal,
            })
            .collect(),
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        rope_theta: config.rope.theta,
        selector: config.dflash2.map(|d| Selector {
            conv_taps: d.conv_kernel_size,
            conv_group: d.conv_group_size,
            rank: d.selector_rank,
            candidates: d.selector_top_k,
        }),
    };
    Ok(Document {
        reference: args.reference.clone(),
        role: "draft",
        architecture: match config.kind {
            DraftKind::DFlash1 => "dflash",
            DraftKind::DFlash2 => "dflash2",
        },
        kind: Kind::Draft(Box::new(draft)),
        quantization: super::quantization(config.quantization.as_ref()),
        tensors: super::tensors(files, args.tensors),
        tokenizer: tokens,
        chat_template,
        memory: memory::of_draft(&config),
        notes: super::notes(files, &config.notes, tokenizer.as_ref()),
    })
}

/// The kinds of tensors that the files hold.
fn modules(files: &ModelFiles, quantized: bool) -> Vec<Module> {
    let describe = |kind: DraftModule| {
        let tensors: Vec<_> = files
            .checkpoint
            .tensors()
            .filter(|t| DraftModule::of(t.name) == Some(kind))
            .collect();
        let mut formats: BTreeMap<&'static str, usize> = BTreeMap::new();
        for tensor in &tensors {
            *formats.entry(tensor.dtype.name()).or_default() += 1;
        }
        let quantizable = kind.is_quantized() && !quantized;
        let fits = |group: &usize| {
            let width = |shape: &[usize]| shape.last().copied().unwrap_or(0);
            tensors
                .iter()
                .all(|t| width(t.shape).is_multiple_of(*group))
        };
        Module {
            kind: kind.name(),
            tensors: tensors.len(),
            bytes: tensors.iter().map(|t| t.bytes).sum(),
            formats,
            quantizable,
            groups: [32, 64, 128]
                .into_iter()
                .filter(|group| quantizable && fits(group))
                .collect(),
        }
    };
    DraftModule::ALL
        .into_iter()
        .map(describe)
        .filter(|m| m.tensors > 0)
        .collect()
}
