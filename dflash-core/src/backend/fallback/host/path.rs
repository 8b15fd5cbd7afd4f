//! The walk through DFlash 2's candidate selector.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Picked;
use crate::spec::{Noise, ProposalRule};
use crate::{Error, Result};

/// The best tokens of each slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates {
    ids: Vec<u32>,
    logits: Vec<f32>,
    per_slot: usize,
    finite: bool,
}

impl Candidates {
    /// From each slot's best tokens with their logits, best first, equally many per slot.
    pub fn from_slots(slots: &[Vec<(u32, f32)>], finite: bool) -> Self {
        let all = || slots.iter().flatten();
        Self {
            ids: all().map(|c| c.0).collect(),
            logits: all().map(|c| c.1).collect(),
            per_slot: slots.first().map_or(0, Vec::len),
            finite,
        }
    }

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

impl Codes<'_> {
    /// Checks that there is a row for every slot and candidate.
    fn expect(&self, candidates: &Candidates) -> Result<()> {
        let count = candidates.ids.len();
        let rows = [count / candidates.per_slot, count + 1, count];
        let expected = rows.map(|rows| rows * self.rank);
        let found = [
            self.hidden.len(),
            self.predecessors.len(),
            self.successors.len(),
        ];
        if found == expected {
            return Ok(());
        }
        let what = "candidate selector: numbers in hidden rows, predecessors and successors";
        Err(Error::shape(
            what,
            format!("{expected:?}"),
            format!("{found:?}"),
        ))
    }
}

/// Walks the candidate selector (DFlash 2 release notes): `score(b) = logit(b) + Σ_r predecessor[p] · hidden · successor[b]`,
/// where p is the token chosen in the slot before. Chooses the largest score, or the largest `score / T + gumbel`.
///
/// # Errors
/// [`Error::Shape`] if rows are missing or too many.
pub fn walk(candidates: &Candidates, codes: &Codes<'_>, rule: &ProposalRule) -> Result<Picked> {
    let (k, rank) = (candidates.per_slot, codes.rank);
    codes.expect(candidates)?;
    let row = |index: usize| index * rank..(index + 1) * rank;
    let mut picked = Picked {
        ids: Vec::new(),
        finite: candidates.finite,
        rivals: None,
    };
    let mut predecessor = 0;
    for (index, ids) in candidates.ids.chunks_exact(k).enumerate() {
        let hidden = &codes.hidden[row(index)];
        let factor: Vec<f32> = codes.predecessors[row(predecessor)]
            .iter()
            .zip(hidden)
            .map(|(p, h)| p * h)
            .collect();
        let scores: Vec<f32> = (index * k..(index + 1) * k)
            .map(|c| candidates.logits[c] + dot(&factor, &codes.successors[row(c)]))
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
    Ok(picked)
}

/// `Σ a · b`, in eight sums side by side that are added at the end.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{coupling, noisy, rule};
    use super::*;
    use crate::spec::Rivals;

    #[test]
    fn candidates_are_the_largest_logits() {
        let found = candidates(
            &[0.0, 3.0, -0.0, 3.0, 1.0, -5.0, -1.0, -1.0, -2.0, -7.0],
            5,
            3,
        )
        .expect("above 0");
        assert_eq!(found.ids(), [1, 3, 4, 1, 2, 3]);
        assert_eq!(found.logits, [3.0, 3.0, 1.0, -1.0, -1.0, -2.0]);
        // The two zeros are equal.
        assert_eq!(
            candidates(&[-0.0, 0.0], 2, 2).expect("above 0").ids(),
            [0, 1]
        );
        let all = candidates(&[1.0, 2.0], 2, 9).expect("above 0");
        assert_eq!((all.per_slot(), all.ids()), (2, [1, 0].as_slice()));
        assert!(candidates(&[1.0], 1, 0).is_err() && candidates(&[], 0, 1).is_err());
    }

    /// Rank 2, four tokens. Predecessor rows: the anchor, then the candidates' own.
    fn walked(
        logits: &[f32],
        hidden: &[f32],
        codes: impl Fn(u32) -> ([f32; 2], [f32; 2]),
        anchor: u32,
        k: usize,
        rule: &ProposalRule,
    ) -> Picked {
        let candidates = candidates(logits, 4, k).expect("above 0");
        let before: Vec<f32> = std::iter::once(anchor)
            .chain(candidates.ids().iter().copied())
            .flat_map(|id| codes(id).0)
            .collect();
        let after: Vec<f32> = candidates
            .ids()
            .iter()
            .flat_map(|id| codes(*id).1)
            .collect();
        walk(
            &candidates,
            &Codes {
                rank: 2,
                hidden,
                predecessors: &before,
                successors: &after,
            },
            rule,
        )
        .expect("a row each")
    }

    /// Predecessor `[1, id]`, successor `[id, 1]`: with hidden `[a, b]` a pair scores `a * next + b * previous`.
    fn pairs(id: u32) -> ([f32; 2], [f32; 2]) {
        let x = f32::from(u8::try_from(id).expect("small"));
        ([1.0, x], [x, 1.0])
    }

    #[test]
    fn the_path_by_hand() {
        // Slot 1 from anchor 2, candidates 0 (-1.0), 3 (-1.5), 1 (-2.0): plus 0.5 * next. 3 wins with 0.0 over 0's -1.0.
        // Slot 2 from 3, candidates 2 (4.0), 0 (3.5), 1 (0.0): minus 1 * next. 0 wins with 3.5 over 2's 2.0.
        let logits = [-1.0, -2.0, -8.0, -1.5, 3.5, 0.0, 4.0, -1.0];
        let picked = walked(&logits, &[0.5, 0.0, -1.0, 0.0], pairs, 2, 3, &rule(3, None));
        assert_eq!(
            picked,
            Picked {
                ids: vec![3, 0],
                finite: true,
                rivals: None
            }
        );
        // One candidate per slot: the logits alone decide.
        assert_eq!(
            walked(&logits, &[0.5, 0.0, -1.0, 0.0], pairs, 2, 1, &rule(3, None)).ids,
            [0, 2]
        );
    }

    #[test]
    fn a_slot_follows_the_token_chosen_before() {
        // A token scores 10 after its predecessor in the ring 0 -> 1 -> 2 -> 3 -> 0, in the selector's sign.
        let ring = |id: u32| {
            let angle = f32::from(u8::try_from(id).expect("small")) * std::f32::consts::FRAC_PI_2;
            let next = angle + std::f32::consts::FRAC_PI_2;
            ([next.cos(), next.sin()], [angle.cos(), angle.sin()])
        };
        let logits = [0.1, 0.0, -0.1, 0.0].repeat(3);
        for anchor in 0..4 {
            let ids = walked(&logits, &[10.0; 6], ring, anchor, 4, &rule(4, None)).ids;
            assert_eq!(
                ids,
                [(anchor + 1) % 4, (anchor + 2) % 4, (anchor + 3) % 4],
                "forwards from {anchor}"
            );
            let ids = walked(&logits, &[-10.0; 6], ring, anchor, 4, &rule(4, None)).ids;
            assert_eq!(
                ids,
                [(anchor + 3) % 4, (anchor + 2) % 4, (anchor + 1) % 4],
                "backwards from {anchor}"
            );
        }
    }

    #[test]
    fn equal_scores_take_the_lowest_id() {
        // Logits put 3 before 1 before 0; the selector makes all scores equal.
        let logits = [0.0, 1.0, -9.0, 3.0];
        assert_eq!(
            walked(&logits, &[-1.0, 0.0], pairs, 0, 3, &rule(2, None)).ids,
            [0]
        );
    }

    #[test]
    fn coupled_paths_add_noise_to_scores() {
        let logits = [-1.0, -2.0, -8.0, -1.5, 3.5, 0.0, 4.0, -1.0];
        for temperature in [0.3, 2.0] {
            let found = walked(
                &logits,
                &[0.5, 0.25, -1.0, 0.5],
                pairs,
                2,
                3,
                &rule(3, coupling(temperature, true)),
            );
            let first = noisy(
                31,
                temperature,
                &[
                    (0, -1.0 + 0.5),
                    (3, -1.5 + 1.5 + 0.5),
                    (1, -2.0 + 0.5 + 0.5),
                ],
            );
            let x = f32::from(u8::try_from(first).expect("small"));
            let second = noisy(
                32,
                temperature,
                &[
                    (2, 4.0 - 2.0 + 0.5 * x),
                    (0, 3.5 + 0.5 * x),
                    (1, -1.0 + 0.5 * x),
                ],
            );
            assert_eq!(found.ids, [first, second]);
            assert_eq!(
                found.rivals,
                Some(Rivals {
                    argmax: 3,
                    coupled: first
                })
            );
        }
    }

    #[test]
    fn a_selector_that_is_not_finite_clears_the_flag() {
        let logits = [0.0, 1.0, 2.0, 3.0].repeat(2);
        let spoiled = walked(
            &logits,
            &[0.0, f32::NAN, 0.0, 0.0],
            pairs,
            0,
            2,
            &rule(3, None),
        );
        assert_eq!((spoiled.finite, spoiled.ids), (false, vec![0, 3]));
        let mut logits = logits;
        logits[4] = f32::NAN;
        assert!(!walked(&logits, &[0.0; 4], pairs, 0, 2, &rule(3, None)).finite);
        logits[4] = f32::NEG_INFINITY;
        assert!(
            !walked(&logits, &[0.0; 4], pairs, 0, 2, &rule(3, None)).finite,
            "also outside the candidates"
        );
    }

    #[test]
    fn missing_rows_are_errors() {
        let candidates = candidates(&[1.0, 2.0], 2, 2).expect("above 0");
        let codes = Codes {
            rank: 1,
            hidden: &[0.0],
            predecessors: &[0.0; 3],
            successors: &[0.0; 2],
        };
        assert!(walk(&candidates, &codes, &rule(2, None)).is_ok());
        for wrong in [
            Codes { rank: 2, ..codes },
            Codes {
                hidden: &[],
                ..codes
            },
            Codes {
                predecessors: &[0.0; 2],
                ..codes
            },
        ] {
            assert!(matches!(
                walk(&candidates, &wrong, &rule(2, None)),
                Err(Error::Shape { .. })
            ));
        }
    }
}
