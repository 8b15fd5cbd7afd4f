//! A draft's description.

use dflash_core::config::{DraftConfig, DraftKind};
use dflash_core::load::ModelFiles;

use super::document::{Document, Draft, DraftLayer, Kind, Selector};
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
    let draft = Draft {
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
