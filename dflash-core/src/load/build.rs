//! Builds an engine on a backend: read, pair, claim, bind.

use super::files::ModelFiles;
use super::plan::DraftPlan;
use super::report::{CacheSummary, DraftSummary, LoadReport};
use super::{LoadRequest, Loaded, ModelSource};
use crate::backend::{Backend, Chip, Exactness, Op};
use crate::cache::Cache;
#[cfg(not(feature = "text"))]
use crate::config::TargetConfig;
use crate::config::{DraftConfig, DraftKind};
use crate::draft::{Draft, DraftOptions, check_pair};
use crate::models::Target;
use crate::spec::{EngineParts, SpecEngine, TextDecoder};
use crate::{DType, Error, Result};

/// Loads target and draft on a backend that computes on the processor, both with its activations.
///
/// # Errors
/// Whatever reading, pairing or the backend finds; nothing is left behind.
pub fn load_on<B: Backend>(backend: &B, threads: usize, request: &LoadRequest) -> Result<Loaded> {
    let asked = Some(backend.dtype()).filter(|dtype| *dtype != DType::F32);
    let plan = DraftPlan::for_request(Chip::Processor, asked, request)?;
    load_with(backend, plan.map(|plan| (backend, plan)), threads, request)
}

/// Loads a target on a backend, and the draft with a plan on another handle of it, whose activations are the plan's.
///
/// # Errors
/// Whatever reading, pairing or the backend finds; nothing is left behind.
pub fn load_with<B: Backend>(
    backend: &B,
    planned: Option<(&B, DraftPlan)>,
    threads: usize,
    request: &LoadRequest,
) -> Result<Loaded> {
    let files = ModelFiles::open(&request.target)?;
    let config = files.target_config()?;
    let draft_files = request.draft.as_ref().map(open_draft).transpose()?;
    if draft_files.is_some() != planned.is_some() {
        let reason = "a request with a draft has a plan for it, one without has none";
        return Err(Error::request("draft", reason));
    }
    let mut notes: Vec<String> = [
        &request.notes,
        &config.notes,
        files.checkpoint.notes(),
        &files.generation.notes,
    ]
    .into_iter()
    .flatten()
    .cloned()
    .collect();
    if let Some((_, _, draft)) = &draft_files {
        notes.extend(check_pair(&config, draft)?.notes);
    }
    let text = Text::read(
        &files,
        draft_files.as_ref().map(|(_, files, _)| files),
        &config,
        &mut notes,
    )?;

    let (mut target, skipped) = Target::load(backend, &config, &files.checkpoint)?;
    notes.extend(skipped);
    let caches = target.decoder().new_caches()?;
    let mut report = LoadReport {
        backend: backend.name(),
        backend_reason: request.backend_reason.clone(),
        device: backend.device(),
        dtype: backend.dtype(),
        exactness: backend.exactness(),
        row_rounding: match backend.exactness() {
            Exactness::Exact => None,
            Exactness::TieTolerant => Some(target.row_rounding()?),
        },
        threads,
        target: request.target.to_string(),
        architecture: config.model_type.clone(),
        vocab_size: config.vocab_size,
        context: config.max_position_embeddings,
        end_ids: text.end_ids.clone(),
        nest: target.nest().to_owned(),
        caches: caches
            .iter()
            .map(|c| CacheSummary {
                kind: c.kind(),
                can_trim: c.can_trim(),
            })
            .collect(),
        weight_bytes: files.checkpoint.total_bytes(),
        draft: None,
        operations: Op::ALL
            .into_iter()
            .map(|op| (op, backend.implementation(op)))
            .collect(),
        notes,
    };
    let mut draft = None;
    if let (Some((source, files, config)), Some((backend, plan))) = (&draft_files, planned) {
        if backend.dtype() != plan.dtype {
            let what = format!(
                "a draft with activations in {} beside a target in {}",
                plan.dtype,
                backend.dtype()
            );
            return Err(Error::Unsupported {
                what,
                by: Some(format!("the {} backend", backend.name())),
                hint: Some("use `--dtype f32`, or another `--draft-quant`".into()),
            });
        }
        report.notes.extend(plan.notes.iter().cloned());
        target.set_taps(&config.target_layer_ids)?;
        if let Some(window) = request.draft_window.filter(|w| *w < 2) {
            return Err(Error::request(
                "draft-window",
                format!("{window} is out of range, expected at least 2"),
            ));
        }
        let (loaded, skipped) = Draft::load(
            backend,
            config,
            &files.checkpoint,
            target.decoder().lend(),
            DraftOptions {
                window: request.draft_window,
                quantize: plan.quantize,
            },
        )?;
        report.notes.extend(
            config
                .notes
                .iter()
                .chain(files.checkpoint.notes())
                .cloned()
                .chain(skipped)
                .map(|note| format!("draft: {note}")),
        );
        report.draft = Some(DraftSummary {
            packed: loaded.packed().cloned(),
            ..summary(&plan, source, files, config)
        });
        draft = Some(loaded);
    }
    for note in &report.notes {
        tracing::info!(note, "loaded with a note");
    }
    let engine = SpecEngine::new(EngineParts {
        target,
        draft,
        decoder: text.decoder,
        report,
        readbacks: |t: &Target<B>| t.backend().readbacks(),
    });
    Ok(Loaded {
        engine: Box::new(engine),
        #[cfg(feature = "text")]
        tokenizer: text.tokenizer,
        generation: files.generation,
    })
}

fn open_draft(source: &ModelSource) -> Result<(ModelSource, ModelFiles, DraftConfig)> {
    let files = ModelFiles::open(source)?;
    let config = files.draft_config()?;
    Ok((source.clone(), files, config))
}

fn summary(
    plan: &DraftPlan,
    source: &ModelSource,
    files: &ModelFiles,
    config: &DraftConfig,
) -> DraftSummary {
    DraftSummary {
        reference: source.to_string(),
        kind: match config.kind {
            DraftKind::DFlash1 => "dflash",
            DraftKind::DFlash2 => "dflash2",
        },
        quant: plan.spec(),
        packed: None,
        dtype: plan.dtype,
        dtype_reason: plan.reason.clone(),
        block_size: config.block_size,
        taps: config.target_layer_ids.clone(),
        weight_bytes: files.checkpoint.total_bytes(),
    }
}

/// What a model's text files give to an engine.
struct Text {
    decoder: Option<Box<dyn TextDecoder>>,
    end_ids: Vec<u32>,
    #[cfg(feature = "text")]
    tokenizer: Option<std::sync::Arc<crate::text::Tokenizer>>,
}

#[cfg(not(feature = "text"))]
impl Text {
    fn read(
        _: &ModelFiles,
        _: Option<&ModelFiles>,
        config: &TargetConfig,
        _: &mut Vec<String>,
    ) -> Result<Self> {
        Ok(Self {
            decoder: None,
            end_ids: config.eos_token_ids.clone(),
        })
    }
}

#[cfg(feature = "text")]
mod with_text {
    use std::sync::Arc;

    use super::{ModelFiles, Text};
    use crate::config::TargetConfig;
    use crate::spec::{TextDecoder, TextStream};
    use crate::text::{Detokenizer, Tokenizer};
    use crate::{Error, PairingCheck, Result};

    #[derive(Debug)]
    struct Decoder(Arc<Tokenizer>);

    impl TextDecoder for Decoder {
        fn stream(&self, show_special: bool) -> Box<dyn TextStream> {
            Box::new(self.0.stream(!show_special))
        }
    }

    impl TextStream for Detokenizer {
        fn push(&mut self, id: u32) -> String {
            Detokenizer::push(self, id)
        }

        fn finish(&mut self) -> String {
            Detokenizer::finish(self)
        }
    }

    impl Text {
        pub(super) fn read(
            files: &ModelFiles,
            draft: Option<&ModelFiles>,
            config: &TargetConfig,
            notes: &mut Vec<String>,
        ) -> Result<Self> {
            let tokenizer = files.tokenizer()?.map(Arc::new);
            let mut end_ids = config.eos_token_ids.clone();
            if let Some(tokenizer) = &tokenizer {
                notes.extend_from_slice(tokenizer.notes());
                if let Some(draft) = draft.map(ModelFiles::tokenizer).transpose()?.flatten() {
                    check_tokenizers(tokenizer, &draft)?;
                }
                if let (true, Some(id)) = (end_ids.is_empty(), tokenizer.eos_id()) {
                    notes.push(format!("no end token in config.json or generation_config.json; the tokenizer's ({id}) is used"));
                    end_ids.push(id);
                }
            }
            let decoder = tokenizer
                .clone()
                .map(|t| Box::new(Decoder(t)) as Box<dyn TextDecoder>);
            Ok(Self {
                decoder,
                end_ids,
                tokenizer,
            })
        }
    }

    /// Refuses a draft whose special tokens have other ids than the target's.
    fn check_tokenizers(target: &Tokenizer, draft: &Tokenizer) -> Result<()> {
        for (id, token) in draft.special_tokens() {
            match target.token_to_id(&token) {
                Some(own) if own != id => {
                    let reason = format!(
                        "the token `{token}` is {own} in the target's tokenizer and {id} in the draft's"
                    );
                    let hint = Some("use the draft published for this target".into());
                    return Err(Error::Pairing {
                        check: PairingCheck::Tokenizer,
                        reason,
                        hint,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
