//! `dflash inspect`: what a model is made of, what it needs and what runs it.
//!
//! Reads configurations and the headers of tensor files; no weight is loaded.

mod document;
mod draft;
mod memory;
mod target;
mod text;

use std::collections::BTreeMap;

use dflash::text::Tokenizer;
use dflash::{Error, PairingCheck};
use dflash_core::config::QuantConfig;
use dflash_core::load::ModelFiles;

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::output::Text;
use document::{Quantization, Template, Tensor, Tensors, Tokens};

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let files = ModelFiles::open(&dflash::resolve(&args.reference)?)?;
    let document = match files.target_config() {
        Err(Error::Pairing {
            check: PairingCheck::Role,
            ..
        }) => draft::describe(args, &files, files.draft_config()?)?,
        config => target::describe(args, &files, config?)?,
    };
    let mut out = Text::new();
    if args.json {
        let json = serde_json::to_string(&document).map_err(|error| {
            Failure::work(
                "E-JSON",
                format!("the description cannot be written as JSON: {error}"),
                "leave out `--json`",
            )
        })?;
        out.write(&json)?;
    } else {
        out.write(&text::render(&document))?;
    }
    out.end_line()?;
    Ok(())
}

/// What is read of a target and of a draft alike.
fn tensors(files: &ModelFiles, list: bool) -> Tensors {
    let mut formats: BTreeMap<&'static str, usize> = BTreeMap::new();
    for tensor in files.checkpoint.tensors() {
        *formats.entry(tensor.dtype.name()).or_default() += 1;
    }
    let all = files.checkpoint.tensors().map(|t| Tensor {
        name: t.name.into(),
        dtype: t.dtype.name(),
        shape: t.shape.to_vec(),
        bytes: t.bytes,
    });
    Tensors {
        count: files.checkpoint.len(),
        bytes: files.checkpoint.total_bytes(),
        formats,
        list: list.then(|| all.collect()),
    }
}

fn quantization(config: Option<&QuantConfig>) -> Option<Quantization> {
    config.map(|config| Quantization {
        mode: config.global.mode.name(),
        bits: config.global.bits,
        group: config.global.group,
        exceptions: config.overrides().count(),
    })
}

fn tokens(tokenizer: Option<&Tokenizer>) -> (Option<Tokens>, Option<Template>) {
    let read = |tokenizer: &Tokenizer| Tokens {
        ids: tokenizer.vocab_size(),
        special: tokenizer.special_tokens().len(),
        bos_id: tokenizer.bos_id(),
        eos_id: tokenizer.eos_id(),
    };
    let template = tokenizer
        .and_then(Tokenizer::chat_template)
        .map(|template| Template {
            bytes: template.source().len(),
            reasoning_switch: ["enable_thinking", "thinking"]
                .iter()
                .any(|name| template.reads(name)),
            reasoning_levels: ["reasoning_effort", "reasoning_strength"]
                .iter()
                .any(|name| template.reads(name)),
            tools: template.reads("tools"),
        });
    (tokenizer.map(read), template)
}

/// Notes of the config, the files and the tokenizer.
fn notes(files: &ModelFiles, config: &[String], tokenizer: Option<&Tokenizer>) -> Vec<String> {
    let own = [config, files.checkpoint.notes(), &files.generation.notes];
    own.into_iter()
        .flatten()
        .chain(tokenizer.iter().flat_map(|t| t.notes()))
        .cloned()
        .collect()
}
