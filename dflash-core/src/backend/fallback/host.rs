//! Proposing, selecting and drawing on numbers in host memory.
//!
//! Backends that compute on the processor call these with their own memory; the composite defaults
//! call them with what they read back. A row that holds a number which is not finite proposes token
//! 0 and clears the finite flag: every id stays usable as an index, and the loop drops the draft.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::spec::{Noise, ProposalRule, Rivals, RowRule, Verdict};
use crate::{Error, Result};

/// Proposals in host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picked {
    /// One token per slot.
    pub ids: Vec<u32>,
    /// Whether everything that they were made from is finite.
    pub finite: bool,
    /// Slot 1 under both rules, when the request samples.
    pub rivals: Option<Rivals>,
}

impl Picked {
    /// From what [`Drafted`](crate::backend::Drafted) holds, read back: ids, the flag `[1]`, and argmax and coupled id.
    ///
    /// # Errors
    /// [`Error::Shape`] if the flag or the rivals have another length.
    pub fn from_parts(ids: Vec<u32>, finite: &[f32], rivals: Option<&[u32]>) -> Result<Self> {
        let &[finite] = finite else {
            return Err(Error::shape(
                "draft: finite flag",
                "one number",
                finite.len(),
            ));
        };
        let rivals = match rivals {
            None => None,
            Some(&[argmax, coupled]) => Some(Rivals { argmax, coupled }),
            Some(other) => return Err(Error::shape("draft: rivals", "two tokens", other.len())),
        };
        Ok(Self {
            ids,
            finite: finite == 1.0,
            rivals,
        })
    }
}

/// The index of the largest number, the lowest of equals. 0 if none is larger than minus infinity.
pub fn argmax(scores: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, &score) in scores.iter().enumerate() {
        if score > best.1 {
            best = (index, score);
        }
    }
    best.0
}

/// Proposes a token per row of `logits` `[slots, vocab]`; see [`Backend::propose`](crate::backend::Backend::propose).
pub fn propose(logits: &[f32], vocab: usize, rule: &ProposalRule) -> Picked {
    let mut picked = Picked {
        ids: Vec::new(),
        finite: true,
        rivals: None,
    };
    for (index, row) in logits.chunks_exact(vocab).enumerate() {
        let finite = row.iter().all(|l| l.is_finite());
        picked.finite &= finite;
        let plain = || if finite { token(argmax(row)) } else { 0 };
        let coupled = |seed, temperature| {
            let noise = Noise {
                seed,
                position: rule.position + index + 1,
            };
            if finite {
                noise.draw_all(row, temperature).id
            } else {
                0
            }
        };
        picked.push(index, rule, plain, coupled);
    }
    picked
}

impl Picked {
    /// Adds a slot's token by the rule, and notes the rivals of the first slot.
    fn push(
        &mut self,
        index: usize,
        rule: &ProposalRule,
        plain: impl Fn() -> u32,
        coupled: impl Fn(u64, f32) -> u32,
    ) -> u32 {
        let id = match rule.coupling {
            None => plain(),
            Some(c) if index == 0 => {
                let rivals = Rivals {
                    argmax: plain(),
                    coupled: coupled(c.seed, c.temperature),
                };
                self.rivals = Some(rivals);
                if c.propose {
                    rivals.coupled
                } else {
                    rivals.argmax
                }
            }
            Some(c) if c.propose => coupled(c.seed, c.temperature),
            Some(_) => plain(),
        };
        self.ids.push(id);
        id
    }
}

/// The best tokens of each slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates {
    ids: Vec<u32>,
    logits: Vec<f32>,
    per_slot: usize,
    finite: bool,
}

impl Candidates {
    /// The tokens, slot after slot, each slot's best first.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How many each slot has: `top_k`, or the vocabulary if that is smaller.
    pub fn per_slot(&self) -> usize {
        self.per_slot
    }
}

/// A candidate; greater is better, so that equal logits put the lowest id first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        // Adding zero makes the two zeros equal.
        (self.logit + 0.0)
            .total_cmp(&(other.logit + 0.0))
            .then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The `top_k` largest logits of each row of `logits` `[slots, vocab]`, largest first, equals by lowest id.
///
/// # Errors
/// [`Error::Shape`] if `top_k` or `vocab` is 0.
pub fn candidates(logits: &[f32], vocab: usize, top_k: usize) -> Result<Candidates> {
    if top_k == 0 || vocab == 0 {
        return Err(Error::shape(
            "candidates per slot",
            "at least 1",
            format!("{top_k} of {vocab} tokens"),
        ));
    }
    let per_slot = top_k.min(vocab);
    let mut found = Candidates {
        ids: Vec::new(),
        logits: Vec::new(),
        per_slot,
        finite: true,
    };
    for row in logits.chunks_exact(vocab) {
        found.finite &= row.iter().all(|l| l.is_finite());
        // The heap's top is the worst of those kept.
        let mut kept = BinaryHeap::with_capacity(per_slot + 1);
        for (id, &logit) in (0u32..).zip(row) {
            let candidate = std::cmp::Reverse(Candidate { logit, id });
            if kept.len() < per_slot {
                kept.push(candidate);
            } else if kept.peek().is_some_and(|worst| candidate < *worst) {
                kept.pop();
                kept.push(candidate);
            }
        }
        // Ascending in `Reverse`: best first.
        for std::cmp::Reverse(c) in kept.into_sorted_vec() {
            found.ids.push(c.id);
            found.logits.push(c.logit);
        }
    }
    Ok(found)
}

/// What the candidate selector multiplies, all rows `rank` wide.
#[derive(Debug, Clone, Copy)]
pub struct Codes<'a> {
    /// Width of a row.
    pub rank: usize,
    /// A row per slot.
    pub hidden: &'a [f32],
    /// The anchor's row, then a row per candidate, of the codebook read for the token before.
    pub predecessors: &'a [f32],
    /// A row per candidate of the other codebook.
    pub successors: &'a [f32],
}

/// Walks the candidate selector (DFlash 2 release notes): `score(b) = logit(b) + Σ_r predecessor[p] · hidden · successor[b]`,
/// where p is the token chosen in the slot before. Chooses the largest score, or the largest `score / T + gumbel`.
pub fn walk(candidates: &Candidates, codes: &Codes<'_>, rule: &ProposalRule) -> Picked {
    let (k, rank) = (candidates.per_slot, codes.rank);
    let row = |rows: &[f32], index: usize| -> Vec<f32> { rows[index * rank..][..rank].to_vec() };
    let mut picked = Picked {
        ids: Vec::new(),
        finite: candidates.finite,
        rivals: None,
    };
    let mut predecessor = 0;
    for (index, ids) in candidates.ids.chunks_exact(k).enumerate() {
        let mut factor = row(codes.predecessors, predecessor);
        factor
            .iter_mut()
            .zip(row(codes.hidden, index))
            .for_each(|(f, h)| *f *= h);
        let scores: Vec<f32> = (index * k..(index + 1) * k)
            .map(|c| {
                candidates.logits[c]
                    + factor
                        .iter()
                        .zip(row(codes.successors, c))
                        .map(|(f, s)| f * s)
                        .sum::<f32>()
            })
            .collect();
        let finite = scores.iter().all(|s| s.is_finite());
        picked.finite &= finite;
        let best = |score: &dyn Fn(usize) -> f32| -> u32 {
            let mut best = (u32::MAX, f32::NEG_INFINITY);
            for (c, &id) in ids.iter().enumerate() {
                let score = score(c);
                if score > best.1 || (score == best.1 && id < best.0) {
                    best = (id, score);
                }
            }
            if finite { best.0 } else { 0 }
        };
        let coupled = |seed, temperature: f32| {
            let noise = Noise {
                seed,
                position: rule.position + index + 1,
            };
            best(&|c| scores[c] / temperature + noise.gumbel(ids[c]))
        };
        let chosen = picked.push(index, rule, || best(&|c| scores[c]), coupled);
        // A slot that is not finite has no candidate to follow; any row does, the draft is dropped.
        predecessor = ids
            .iter()
            .position(|&id| id == chosen)
            .map_or(0, |c| 1 + index * k + c);
    }
    picked
}

/// Draws the rows of `logits` `[rows, vocab]` in order; see [`Backend::draw`](crate::backend::Backend::draw).
///
/// Ends with the first row that has no draft to agree with. If the draft is not finite, that is row 0.
///
/// # Errors
/// [`Error::Shape`] if there are no logits, or more rows than the draft and one.
pub fn draw(
    logits: &[f32],
    vocab: usize,
    draft: Option<Picked>,
    rule: &RowRule<'_>,
) -> Result<Result<Verdict, usize>> {
    let rows = logits.len().checked_div(vocab).unwrap_or(0);
    let draft = draft.unwrap_or(Picked {
        ids: Vec::new(),
        finite: true,
        rivals: None,
    });
    if rows == 0 || rows > draft.ids.len() + 1 {
        return Err(Error::shape(
            "drawing: rows of logits",
            format!("1 to {}", draft.ids.len() + 1),
            rows,
        ));
    }
    let agreeable = if draft.finite {
        draft.ids.as_slice()
    } else {
        &[]
    };
    let mut chosen = Vec::new();
    for (index, row) in logits.chunks_exact(vocab).enumerate() {
        let Ok(choice) = rule.draw(index, row, &agreeable[..index]) else {
            return Ok(Err(index));
        };
        chosen.push(choice);
        if agreeable.get(index) != Some(&choice.id) {
            break;
        }
    }
    Ok(Ok(Verdict {
        drafted: draft.ids,
        rows: chosen,
        draft_finite: draft.finite,
        rivals: draft.rivals,
    }))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "vocabularies are far below 2^32"
)]
fn token(index: usize) -> u32 {
    index as u32
}
