//! The small trained target and its two drafts, against recorded texts.

use std::path::Path;

use super::drive::finish;
use super::golden;
use crate::backend::Backend;
use crate::spec::{Request, Sampling};
use crate::{Error, Result};

/// A recorded prompt and its greedy text.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct NanoCase {
    /// Token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Tokens, the end token included.
    pub tokens: Vec<u32>,
    /// The text without the end token.
    pub text: String,
    /// Tokens per round, by draft and block size (`d1/b8`).
    pub acceptance_lengths: std::collections::BTreeMap<String, Vec<usize>>,
}

/// Ids that end a text of this model.
pub const END_IDS: [u32; 2] = [2, 0];

/// The recorded cases of a folder.
///
/// # Errors
/// If `expected.json` cannot be read.
pub fn cases(folder: &Path) -> Result<Vec<NanoCase>> {
    #[derive(serde::Deserialize)]
    struct Expected {
        cases: Vec<NanoCase>,
    }
    let path = folder.join("expected.json");
    let json = std::fs::read(&path).map_err(|source| Error::Io {
        path: path.clone(),
        source,
    })?;
    let expected: Expected =
        serde_json::from_slice(&json).map_err(|e| Error::config(&path, "cases", e.to_string()))?;
    Ok(expected.cases)
}

/// Tokens, texts and rounds of the first `limit` cases with both drafts: at block 8 and 4 as recorded, and the tokens at
/// `other_blocks`. Returns what differs.
///
/// # Errors
/// If the folder cannot be loaded or a run fails.
pub fn check<B: Backend>(
    backend: &B,
    folder: &Path,
    limit: usize,
    other_blocks: &[usize],
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let cases = cases(folder)?;
    let target = folder.join("target");
    for draft in ["d1", "d2"] {
        let mut loaded = golden::load(backend, &target, Some(&folder.join(draft)))?;
        for (i, case) in cases.iter().take(limit).enumerate() {
            for &block in [8, 4].iter().chain(other_blocks) {
                let place = format!("case {i}, {draft} at block {block}");
                let request = Request {
                    block_size: Some(block),
                    end_ids: END_IDS.to_vec(),
                    ..golden::request(&case.prompt_ids, 200)
                };
                let report = finish(loaded.engine.as_mut(), &request)?;
                if report.tokens != case.tokens {
                    found.push(format!(
                        "{place}: tokens {}",
                        golden::first_difference(&report.tokens, &case.tokens)
                    ));
                }
                if cfg!(feature = "text") && report.text != case.text {
                    found.push(format!(
                        "{place}: {:?}, recorded {:?}",
                        report.text, case.text
                    ));
                }
                let name = format!("{draft}/b{block}");
                match case.acceptance_lengths.get(&name) {
                    Some(recorded) if report.acceptance_lengths != *recorded => {
                        found.push(format!(
                            "{place}: rounds {:?}, recorded {recorded:?}",
                            report.acceptance_lengths
                        ));
                    }
                    None if block == 8 || block == 4 => {
                        found.push(format!("{place}: no rounds are recorded"));
                    }
                    _ => {}
                }
                if report.rounds == 0 || report.accepted == 0 || !report.draft_active {
                    found.push(format!("{place}: {} accepted", report.accepted));
                }
            }
        }
    }
    Ok(found)
}

/// A long text without end tokens, with each draft at some block sizes and without one, greedy and at temperature 1:
/// the same tokens. Returns what differs.
///
/// # Errors
/// If the folder cannot be loaded or a run fails.
pub fn check_long<B: Backend>(
    backend: &B,
    folder: &Path,
    tokens: usize,
    blocks: &[usize],
    temperatures: &[f32],
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let cases = cases(folder)?;
    let prompt = &cases
        .first()
        .ok_or_else(|| Error::config(folder, "cases", "there is none"))?
        .prompt_ids;
    for &temperature in temperatures {
        let sampling = Sampling {
            temperature,
            seed: 1,
            ..Sampling::default()
        };
        let request = Request {
            sampling,
            ..golden::request(prompt, tokens)
        };
        let mut plain = golden::load(backend, &folder.join("target"), None)?;
        let plain = finish(plain.engine.as_mut(), &request)?.tokens;
        for draft in ["d1", "d2"] {
            let mut loaded =
                golden::load(backend, &folder.join("target"), Some(&folder.join(draft)))?;
            for &block in blocks {
                let request = Request {
                    block_size: Some(block),
                    ..request.clone()
                };
                let report = finish(loaded.engine.as_mut(), &request)?;
                let place = format!("{draft} at block {block}, temperature {temperature}");
                if report.tokens != plain {
                    found.push(format!(
                        "{place}: {}",
                        golden::first_difference(&report.tokens, &plain)
                    ));
                }
                if report.accepted == 0 || !report.draft_active {
                    found.push(format!("{place}: nothing was accepted"));
                }
            }
        }
    }
    Ok(found)
}
