//! Proposing, selecting and drawing on numbers in host memory.
//!
//! Backends that compute on the processor call these with their own memory; the composite defaults
//! call them with what they read back. A row that holds a number which is not finite proposes token
//! 0 and clears the finite flag: every id stays usable as an index, and the loop drops the draft.

mod path;

pub use path::{Candidates, Codes, candidates, walk};

use crate::spec::{Choice, Noise, ProposalRule, Rivals, RowRule, Verdict};
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
///
/// # Errors
/// [`Error::Shape`] if `vocab` is 0.
pub fn propose(logits: &[f32], vocab: usize, rule: &ProposalRule) -> Result<Picked> {
    if vocab == 0 {
        return Err(Error::shape(
            "proposing: vocabulary",
            "at least one token",
            vocab,
        ));
    }
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
    Ok(picked)
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
    draw_with(logits, vocab, draft, |index, row, before| {
        rule.draw(index, row, before).ok()
    })
}

/// [`draw`] with another way to choose a row's token, from the row's index, its logits and the drafts before it; `None` if it is not finite.
///
/// # Errors
/// As [`draw`].
pub fn draw_with(
    logits: &[f32],
    vocab: usize,
    draft: Option<Picked>,
    choose: impl Fn(usize, &[f32], &[u32]) -> Option<Choice>,
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
        let Some(choice) = choose(index, row, &agreeable[..index]) else {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Coupling, Occurred, Sampling};

    pub(super) fn rule(rows: usize, coupling: Option<Coupling>) -> ProposalRule {
        ProposalRule {
            rows,
            position: 30,
            coupling,
        }
    }

    pub(super) fn coupling(temperature: f32, propose: bool) -> Option<Coupling> {
        Some(Coupling {
            seed: 9,
            temperature,
            propose,
        })
    }

    /// The id with the largest `score / T + gumbel` by the definition.
    pub(super) fn noisy(position: usize, temperature: f32, scores: &[(u32, f32)]) -> u32 {
        let noise = Noise { seed: 9, position };
        let score = |(id, s): &(u32, f32)| s / temperature + noise.gumbel(*id);
        scores
            .iter()
            .max_by(|a, b| score(a).total_cmp(&score(b)))
            .expect("scores")
            .0
    }

    #[test]
    fn slots_propose_their_best() {
        let logits = [0.0, 2.0, 2.0, -1.0, -3.0, -3.0, -2.0, -9.0];
        let picked = propose(&logits, 4, &rule(3, None)).expect("tokens");
        assert_eq!(
            picked,
            Picked {
                ids: vec![1, 2],
                finite: true,
                rivals: None
            }
        );
    }

    #[test]
    fn coupled_slots_follow_the_noise_of_their_position() {
        let logits: Vec<f32> = (0..60u16).map(|i| f32::from(i * 7 % 13) / 5.0).collect();
        for temperature in [0.2, 1.0, 3.0] {
            let slots: Vec<Vec<(u32, f32)>> = logits
                .chunks(20)
                .map(|row| (0..).zip(row.iter().copied()).collect())
                .collect();
            let expected: Vec<u32> = slots
                .iter()
                .enumerate()
                .map(|(i, row)| noisy(31 + i, temperature, row))
                .collect();
            let plain = propose(&logits, 20, &rule(4, None)).expect("tokens");
            let coupled =
                propose(&logits, 20, &rule(4, coupling(temperature, true))).expect("tokens");
            let watched =
                propose(&logits, 20, &rule(4, coupling(temperature, false))).expect("tokens");
            assert_eq!(coupled.ids, expected);
            assert_eq!(watched.ids, plain.ids);
            let rivals = Some(Rivals {
                argmax: plain.ids[0],
                coupled: expected[0],
            });
            assert_eq!((coupled.rivals, watched.rivals), (rivals, rivals));
        }
    }

    #[test]
    fn a_slot_that_is_not_finite_clears_the_flag_and_stays_an_id() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for coupling in [None, coupling(1.0, true)] {
                let picked = propose(&[0.0, 1.0, 5.0, bad], 2, &rule(3, coupling)).expect("tokens");
                assert!(!picked.finite);
                assert_eq!(picked.ids[1], 0);
            }
        }
    }

    #[test]
    fn drawing_ends_at_the_first_disagreement() {
        let occurred = Occurred::default();
        let greedy = RowRule {
            sampling: Sampling::default(),
            position: 5,
            occurred: &occurred,
        };
        // The target chooses 1, 0, 2.
        let logits = [0.0, 1.0, 0.0, 3.0, 1.0, 2.0, 0.0, 0.0, 4.0];
        let run = |ids: &[u32], finite| {
            let draft = Picked {
                ids: ids.to_vec(),
                finite,
                rivals: Some(Rivals {
                    argmax: 7,
                    coupled: 8,
                }),
            };
            let verdict = draw(&logits, 3, Some(draft), &greedy)
                .expect("fits")
                .expect("finite");
            assert_eq!(
                (verdict.drafted.as_slice(), verdict.draft_finite),
                (ids, finite)
            );
            assert_eq!(
                verdict.rivals,
                Some(Rivals {
                    argmax: 7,
                    coupled: 8
                })
            );
            verdict
                .rows
                .iter()
                .map(|c| (c.id, c.margin))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(&[1, 0], true), [(1, 1.0), (0, 1.0), (2, 4.0)]);
        assert_eq!(run(&[1, 2], true), [(1, 1.0), (0, 1.0)]);
        assert_eq!(run(&[0, 0], true), [(1, 1.0)]);
        assert_eq!(
            run(&[1, 0], false),
            [(1, 1.0)],
            "a draft that is not finite is not followed"
        );
        assert_eq!(
            run(&[1, 0, 2], true).len(),
            3,
            "rows may be fewer than the draft"
        );
        let alone = draw(&logits[..3], 3, None, &greedy)
            .expect("fits")
            .expect("finite");
        assert!(
            alone.drafted.is_empty()
                && alone.draft_finite
                && alone.rows.len() == 1
                && alone.rivals.is_none()
        );
        for (logits, draft) in [
            (&logits[..], None),
            (&logits, Some(vec![1])),
            (&[][..], None),
        ] {
            let draft = draft.map(|ids| Picked {
                ids,
                finite: true,
                rivals: None,
            });
            assert!(matches!(
                draw(logits, 3, draft, &greedy),
                Err(Error::Shape { .. })
            ));
        }
    }

    #[test]
    fn a_row_is_named_if_it_had_to_be_drawn() {
        let occurred = Occurred::default();
        let greedy = RowRule {
            sampling: Sampling::default(),
            position: 5,
            occurred: &occurred,
        };
        let logits = [0.0, 1.0, f32::NAN, 1.0];
        let run = |id| {
            draw(
                &logits,
                2,
                Some(Picked {
                    ids: vec![id],
                    finite: true,
                    rivals: None,
                }),
                &greedy,
            )
            .expect("fits")
        };
        assert_eq!(run(1).err(), Some(1));
        assert_eq!(
            run(0).map(|v| v.rows.len()),
            Ok(1),
            "row 1 is past the disagreement"
        );
    }

    #[test]
    fn a_row_sees_the_drafts_before_it() {
        let occurred = Occurred::default();
        let sampling = Sampling {
            repetition_penalty: 4.0,
            ..Sampling::default()
        };
        let rule = RowRule {
            sampling,
            position: 0,
            occurred: &occurred,
        };
        // Both rows prefer 0; row 1 has 0 in its draft and turns to 1.
        let draft = Picked {
            ids: vec![0],
            finite: true,
            rivals: None,
        };
        let verdict = draw(&[3.0, 2.0, 3.0, 2.0], 2, Some(draft), &rule)
            .expect("fits")
            .expect("finite");
        assert_eq!(
            verdict.rows.iter().map(|c| c.id).collect::<Vec<_>>(),
            [0, 1]
        );
    }

    #[test]
    fn parts_that_do_not_fit_are_errors() {
        assert!(
            Picked::from_parts(vec![1], &[1.0], Some(&[2, 3]))
                .is_ok_and(|p| p.finite && p.rivals.is_some())
        );
        assert!(
            Picked::from_parts(vec![1], &[0.0], None)
                .is_ok_and(|p| !p.finite && p.rivals.is_none())
        );
        assert!(Picked::from_parts(vec![1], &[], None).is_err());
        assert!(Picked::from_parts(vec![1], &[1.0], Some(&[2])).is_err());
        assert!(propose(&[], 0, &rule(2, None)).is_err());
    }
}
