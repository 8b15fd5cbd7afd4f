//! The text is plain decoding's, whatever the draft says.

use std::path::Path;

use super::drive::{self, decode, finish};
use super::fakes::{Behaviour, FakeDraft};
use super::golden;
use crate::Result;
use crate::backend::Backend;
use crate::draft::{Draft, DraftOptions};
use crate::models::Target;
use crate::spec::{Report, Request, Sampling, TargetModel};

/// A target, a prompt, and how far to decode.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Folder of the target.
    pub target: &'a Path,
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Tokens to generate.
    pub tokens: usize,
    /// Rows per block, the largest that is tried.
    pub block: usize,
}

/// What a fake must be caught doing, so that an equal text means something.
pub(super) fn misbehaved(behaviour: Behaviour, block: usize, report: &Report) -> Option<String> {
    // The last round may be cut by the budget.
    let full = &report.acceptance_lengths[..report.rounds.saturating_sub(1)];
    let all = |length: usize| full.iter().all(|l| *l == length);
    let slots = block - 1;
    let fits = report.rounds > 0
        && report.drafted > 0
        && match behaviour {
            Behaviour::Oracle => all(block) && report.accepted > 0 && report.draft_active,
            Behaviour::Liar => all(1) && report.accepted == 0 && report.draft_active,
            Behaviour::Half(right) => {
                all(right.min(slots) + 1) && (right == 0 || report.accepted > 0)
            }
            // Few blocks may all happen to be right or wrong.
            Behaviour::Scattered(_) => {
                report.rounds < 8 || (report.accepted > 0 && report.accepted < report.drafted)
            }
            Behaviour::Random(_) => report.accepted < report.drafted && report.draft_active,
            Behaviour::NotANumber(_) | Behaviour::Unflagged => {
                all(1)
                    && report.accepted == 0
                    && report.non_finite_drafts == 2
                    && !report.draft_active
                    && report
                        .draft_inactive_reason
                        .as_ref()
                        .is_some_and(|r| r.contains("not finite"))
            }
            Behaviour::FailsToPropose(_) | Behaviour::FailsToAbsorb(_) => {
                !report.draft_active
                    && report
                        .draft_inactive_reason
                        .as_ref()
                        .is_some_and(|r| r.contains("failed"))
                    && report.notes.iter().any(|n| n.contains("failed"))
            }
        };
    (!fits).then(|| {
        format!(
            "{behaviour:?} at block {block}: {} rounds of {full:?}, {} of {} accepted, active: {}, not finite: {}",
            report.rounds,
            report.accepted,
            report.drafted,
            report.draft_active,
            report.non_finite_drafts
        )
    })
}

/// Every behaviour that [`check_text`] tries at a block size.
pub fn behaviours(block: usize) -> Vec<Behaviour> {
    let mut all = vec![
        Behaviour::Oracle,
        Behaviour::Liar,
        Behaviour::Random(1),
        Behaviour::NotANumber(None),
        Behaviour::NotANumber(Some(0)),
        Behaviour::NotANumber(Some(block - 2)),
        Behaviour::Unflagged,
        Behaviour::FailsToPropose(1),
    ];
    all.extend((1..block).map(Behaviour::Half));
    if block > 2 {
        all.extend((0..3).map(Behaviour::Scattered));
    }
    all
}

/// The text with every fake and block size against plain decoding, greedy and sampled. Returns what differs.
///
/// # Errors
/// If the target cannot be loaded or a run fails.
pub fn check_text<B: Backend>(backend: &B, case: &Case<'_>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for sampling in [Sampling::default(), sampled(7)] {
        let plain = plain_text(backend, case, sampling)?;
        let vocab = drive::load_report(backend, case.target)?.vocab_size;
        let fake = FakeDraft::new(
            backend,
            Behaviour::Oracle,
            case.prompt,
            &plain,
            vocab,
            case.block,
        );
        let mut engine = drive::engine(backend, case.target, Some(fake))?;
        for block in [2, 3, 5, case.block] {
            let chunk = 1 + block;
            let absorbs = case.prompt.len().div_ceil(chunk) + 1;
            let fails = Behaviour::FailsToAbsorb(absorbs);
            for behaviour in behaviours(block).into_iter().chain([fails]) {
                if let Some(fake) = engine.draft() {
                    fake.set(behaviour);
                }
                let request = Request {
                    sampling,
                    block_size: Some(block),
                    prefill_chunk: chunk,
                    ..golden::request(case.prompt, case.tokens)
                };
                let report = finish(&mut engine, &request)?;
                if report.tokens != plain {
                    found.push(format!(
                        "{behaviour:?} at block {block}, temperature {}: tokens {}",
                        sampling.temperature,
                        golden::first_difference(&report.tokens, &plain)
                    ));
                }
                found.extend(misbehaved(behaviour, block, &report));
            }
        }
    }
    Ok(found)
}

/// Temperature 1, so that a text has real entropy.
fn sampled(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.0,
        seed,
        ..Sampling::default()
    }
}

pub(super) fn plain_text<B: Backend>(
    backend: &B,
    case: &Case<'_>,
    sampling: Sampling,
) -> Result<Vec<u32>> {
    let target = golden::load_target(backend, case.target)?;
    decode(
        &target,
        &mut target.new_state()?,
        case.prompt,
        case.tokens,
        sampling,
        &mut |_| Ok(()),
    )
}

/// The text of a real draft at every block size against plain decoding, with several kinds of sampling. Returns what differs.
///
/// # Errors
/// If a folder cannot be loaded or a run fails.
pub fn check_draft_text<B: Backend>(
    backend: &B,
    case: &Case<'_>,
    draft: &Path,
    blocks: &[usize],
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut loaded = golden::load(backend, case.target, Some(draft))?;
    for sampling in [
        Sampling::default(),
        sampled(1),
        Sampling {
            top_k: 20,
            top_p: 0.9,
            ..sampled(2)
        },
        Sampling {
            min_p: 0.05,
            repetition_penalty: 1.3,
            temperature: 0.7,
            ..sampled(3)
        },
        Sampling {
            repetition_penalty: 1.5,
            ..Sampling::default()
        },
    ] {
        let request = Request {
            sampling,
            ..golden::request(case.prompt, case.tokens)
        };
        let plain = finish(
            loaded.engine.as_mut(),
            &Request {
                draft: false,
                ..request.clone()
            },
        )?;
        if plain.drafted > 0 || plain.draft_active {
            found.push("a plain run drafted".into());
        }
        for &block in blocks {
            let request = Request {
                block_size: Some(block),
                prefill_chunk: block + 2,
                ..request.clone()
            };
            let report = finish(loaded.engine.as_mut(), &request)?;
            if report.tokens != plain.tokens {
                found.push(format!(
                    "block {block}, {sampling:?}: tokens {}",
                    golden::first_difference(&report.tokens, &plain.tokens)
                ));
            }
            if block > 1 && (report.rounds == 0 || report.drafted == 0 || !report.draft_active) {
                found.push(format!("block {block}: nothing was drafted"));
            }
        }
    }
    Ok(found)
}

/// A target with a draft's taps, and the draft bound to it.
///
/// # Errors
/// Whatever loading finds.
pub fn load_pair<B: Backend>(
    backend: &B,
    target: &Path,
    draft: &Path,
    window: Option<usize>,
) -> Result<(Target<B>, Draft<B>)> {
    let options = DraftOptions {
        window,
        ..DraftOptions::default()
    };
    load_pair_with(backend, target, draft, options)
}

/// [`load_pair`] with a draft that is loaded in another way.
///
/// # Errors
/// Whatever loading finds.
pub fn load_pair_with<B: Backend>(
    backend: &B,
    target: &Path,
    draft: &Path,
    options: DraftOptions,
) -> Result<(Target<B>, Draft<B>)> {
    use crate::load::{ModelFiles, ModelSource};
    let files = ModelFiles::open(&ModelSource::Folder(draft.into()))?;
    let config = files.draft_config()?;
    let mut model = golden::load_target(backend, target)?;
    model.set_taps(&config.target_layer_ids)?;
    let (draft, _) = Draft::load(
        backend,
        &config,
        &files.checkpoint,
        model.decoder().lend(),
        options,
    )?;
    Ok((model, draft))
}
