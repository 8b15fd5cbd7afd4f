//! At the tie-tolerant level the text is plain decoding's up to a choice that was counted as a near-tie.

use std::path::Path;

use super::golden;
use super::lossless::Case;
use crate::Result;
use crate::backend::Backend;
use crate::spec::{Engine, Event, Report, Request, Sampling, Step};

/// What [`check_ties`] saw, so that a test can tell that something was at stake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Texts that were compared with plain decoding's.
    pub texts: usize,
    /// Of those, the ones that parted from it.
    pub parted: usize,
    /// Near-ties counted in texts that did not.
    pub near_ties: usize,
    /// Tokens compared.
    pub tokens: usize,
}

/// A request's report, and per token whether its round counted a near-tie.
fn run(engine: &mut dyn Engine, request: Request) -> Result<(Report, Vec<bool>)> {
    let id = engine.start(request)?;
    let mut near = Vec::new();
    loop {
        let step = engine.step(id, &mut |event| {
            if let Event::Round(round) = event {
                near.extend(std::iter::repeat_n(round.near_ties > 0, round.produced));
            }
        })?;
        if let Step::Finished(report) = step {
            // The first token comes from the prompt, before any round.
            near.insert(0, false);
            return Ok((*report, near));
        }
    }
}

/// The text of a draft at several block sizes against plain decoding, greedy and sampled: equal, or parting at a token whose
/// round counted a near-tie. Returns what is neither.
///
/// # Errors
/// If a folder cannot be loaded or a run fails.
pub fn check_ties<B: Backend>(
    backend: &B,
    case: &Case<'_>,
    draft: &Path,
    blocks: &[usize],
) -> Result<(Vec<String>, Seen)> {
    let mut found = Vec::new();
    let mut seen = Seen::default();
    let mut loaded = golden::load(backend, case.target, Some(draft))?;
    let warm = Sampling {
        temperature: 1.0,
        seed: 5,
        ..Sampling::default()
    };
    let samplings = [
        Sampling::default(),
        warm,
        Sampling {
            top_k: 20,
            top_p: 0.9,
            repetition_penalty: 1.2,
            ..warm
        },
    ];
    for sampling in samplings {
        let request = Request {
            sampling,
            ..golden::request(case.prompt, case.tokens)
        };
        let plain = Request {
            draft: false,
            ..request.clone()
        };
        let (plain, _) = run(loaded.engine.as_mut(), plain)?;
        for &block in blocks {
            let request = Request {
                block_size: Some(block),
                ..request.clone()
            };
            let (report, near) = run(loaded.engine.as_mut(), request)?;
            seen.texts += 1;
            let pairs = report.tokens.iter().zip(&plain.tokens);
            match pairs.into_iter().position(|(a, b)| a != b) {
                None => {
                    seen.near_ties += report.near_ties;
                    seen.tokens += report.tokens.len();
                    if report.tokens.len() != plain.tokens.len() {
                        found.push(format!("block {block}, {sampling:?}: another length"));
                    }
                }
                Some(at) => {
                    seen.parted += 1;
                    seen.tokens += at;
                    if near.get(at) != Some(&true) {
                        found.push(format!(
                            "block {block}, {sampling:?}: tokens part at {at}, where no near-tie was counted"
                        ));
                    }
                }
            }
        }
    }
    Ok((found, seen))
}
