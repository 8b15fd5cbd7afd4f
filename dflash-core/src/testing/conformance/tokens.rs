//! From logits to tokens: ids must be equal, not close.

use super::Failure;
use super::judge::{Judge, attempt, tolerance};
use super::make::{Layout, Maker, Stored, round};
use crate::backend::fallback::host;
use crate::backend::reference::Reference;
use crate::backend::{Backend, Drafted, Implementation, Op, PathRule};
use crate::spec::{Coupling, Occurred, ProposalRule, Rivals, RowRule, Sampling, Verdict};
use crate::{DType, Error, Result};

/// Proposals, read back.
fn picked<B: Backend>(b: &B, drafted: &Drafted<B>) -> Result<host::Picked> {
    let ids = b.read_ids(&drafted.ids)?;
    if ids.len() != drafted.rows {
        return Err(Error::shape("proposals", drafted.rows, ids.len()));
    }
    let rivals = drafted.rivals.as_ref().map(|r| b.read_ids(r)).transpose()?;
    host::Picked::from_parts(ids, &b.read(&drafted.finite)?, rivals.as_deref())
}

/// Proposals from what is not a number mean nothing: only the flag counts, and that ids are ids.
fn settle(picked: Result<host::Picked>, vocab: usize) -> Result<host::Picked> {
    let mut picked = picked?;
    if !picked.finite {
        let valid = |id: &mut u32| *id = if (*id as usize) < vocab { 0 } else { u32::MAX };
        picked.ids.iter_mut().for_each(valid);
        if let Some(r) = &mut picked.rivals {
            [&mut r.argmax, &mut r.coupled].into_iter().for_each(valid);
        }
    }
    Ok(picked)
}

const COUPLINGS: [Option<Coupling>; 4] = [
    None,
    Some(Coupling {
        seed: 11,
        temperature: 1.0,
        propose: false,
    }),
    Some(Coupling {
        seed: 11,
        temperature: 1.0,
        propose: true,
    }),
    Some(Coupling {
        seed: 1 << 40,
        temperature: 0.3,
        propose: true,
    }),
];

/// Random logits, the last two tokens of each row made equal to its largest; and a spoiled row if asked.
fn logits<B: Backend>(
    make: &mut Maker<'_, B>,
    slots: usize,
    vocab: usize,
    spoiled: Option<(usize, f32)>,
) -> Vec<f32> {
    let mut numbers: Vec<f32> = make
        .numbers(slots * vocab)
        .iter()
        .map(|l| 6.0 * l)
        .collect();
    for row in numbers.chunks_exact_mut(vocab) {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row[vocab.saturating_sub(2)..].fill(best);
    }
    if let Some((row, value)) = spoiled {
        numbers[row * vocab + vocab / 2] = value;
    }
    numbers
}

/// Proposals slot by slot, with and without noise.
pub fn propose<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let bad = [
        None,
        Some((0, f32::NAN)),
        Some((1, f32::INFINITY)),
        Some((2, f32::NEG_INFINITY)),
    ];
    for (slots, vocab) in [(1, 1), (1, 300), (3, 7), (15, 1031), (2, 248_320)] {
        let bad = bad.iter().filter(|s| s.is_none_or(|(row, _)| row < slots));
        for (spoiled, coupling) in bad.flat_map(|s| COUPLINGS.map(|c| (*s, c))) {
            for layout in Layout::ALL {
                propose_once(&mut j, [1, slots, vocab], spoiled, coupling, layout);
            }
        }
    }
    j.failures
}

fn propose_once<B: Backend>(
    j: &mut Judge<'_, B>,
    shape: [usize; 3],
    spoiled: Option<(usize, f32)>,
    coupling: Option<Coupling>,
    layout: Layout,
) {
    let b = j.backend;
    let [_, slots, vocab] = shape;
    let rule = ProposalRule {
        rows: slots + 1,
        position: 40,
        coupling,
    };
    let mut make = j.maker();
    let numbers = logits(&mut make, slots, vocab, spoiled);
    let ours = attempt(|| {
        picked(
            b,
            &b.propose(&make.laid_out(&numbers, &shape, layout)?, &rule)?,
        )
    });
    let rounded: Vec<f32> = numbers.iter().map(|&x| round(x, b.dtype())).collect();
    let expected = settle(host::propose(&rounded, vocab, &rule), vocab)
        .expect("invariant: a case suits the reference");
    let case = format!("{shape:?}, {coupling:?}, spoiled {spoiled:?}, {layout:?} input");
    j.equal("propose", case, settle(ours, vocab), &expected);
}

/// Runs the candidate selector on one backend.
fn select<B: Backend>(b: &B, dtype: DType, seed: u64, case: &PathCase) -> Result<host::Picked> {
    let PathCase {
        slots,
        vocab,
        rank,
        top_k,
        stored,
        spoiled,
        layout,
        rule,
    } = *case;
    let mut make = Maker::new(b, dtype, seed);
    let (predecessor, successor) = (
        make.weight(stored, vocab, rank)?,
        make.weight(stored, vocab, rank)?,
    );
    let numbers = logits(&mut make, slots, vocab, spoiled);
    let logits = make.laid_out(&numbers, &[1, slots, vocab], layout)?;
    let hidden: Vec<f32> = make.numbers(slots * rank).iter().map(|x| 9.0 * x).collect();
    let hidden = make.laid_out(&hidden, &[1, slots, rank], layout)?;
    let anchor = u32::try_from(vocab / 3).expect("invariant: a small vocabulary");
    let path = PathRule {
        predecessor: &predecessor,
        successor: &successor,
        anchor,
        top_k,
    };
    picked(b, &b.path_select(&logits, &hidden, &path, &rule)?)
}

#[derive(Debug, Clone, Copy)]
struct PathCase {
    slots: usize,
    vocab: usize,
    rank: usize,
    top_k: usize,
    stored: Stored,
    spoiled: Option<(usize, f32)>,
    layout: Layout,
    rule: ProposalRule,
}

/// Paths through one candidate, several, and the whole vocabulary.
pub fn path_select<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for (slots, vocab, rank, top_k) in [
        (1, 5, 4, 1),
        (3, 40, 8, 4),
        (3, 7, 8, 7),
        (7, 12, 16, 64),
        (15, 500, 32, 20),
    ] {
        for coupling in COUPLINGS {
            for stored in Stored::PLAIN {
                for layout in Layout::ALL {
                    for spoiled in [None, Some((slots - 1, f32::NAN))] {
                        let rule = ProposalRule {
                            rows: slots + 1,
                            position: 3,
                            coupling,
                        };
                        let case = PathCase {
                            slots,
                            vocab,
                            rank,
                            top_k,
                            stored,
                            spoiled,
                            layout,
                            rule,
                        };
                        let (seed, dtype) = (j.next_seed(), backend.dtype());
                        let expected = select(&Reference::new(), dtype, seed, &case)
                            .expect("invariant: a case suits the reference");
                        let expected = settle(Ok(expected), vocab).expect("invariant: given as ok");
                        let ours = settle(select(backend, dtype, seed, &case), vocab);
                        j.equal("path_select", format!("{case:?}"), ours, &expected);
                    }
                }
            }
        }
    }
    j.failures
}

/// One block to draw.
#[derive(Debug, Clone, Copy)]
struct Block {
    sampling: Sampling,
    /// Drafts that agree with the target, of `drafts`.
    agree: usize,
    drafts: usize,
    /// Whether the draft says that it is finite.
    finite: bool,
    /// A row and a number that spoils it.
    spoiled: Option<(usize, f32)>,
    layout: Layout,
}

const VOCAB: usize = 211;

impl Block {
    /// Ids as a draft that agrees with the first rows would have them.
    fn drafted(&self, logits: &[f32], rule: &RowRule<'_>) -> Vec<u32> {
        let mut ids = Vec::new();
        for (row, logits) in logits.chunks_exact(VOCAB).take(self.drafts).enumerate() {
            let own = rule.draw(row, logits, &ids).map_or(0, |c| c.id);
            ids.push(if row < self.agree {
                own
            } else {
                (own + 1) % 211
            });
        }
        ids
    }
}

/// Greedy and sampled rows, blocks that agree in part, drafts and rows that are not numbers.
pub fn draw<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let greedy = Sampling::default();
    let warm = Sampling {
        temperature: 1.0,
        seed: 5,
        ..greedy
    };
    let samplings = [
        greedy,
        warm,
        Sampling { top_k: 20, ..warm },
        Sampling {
            top_p: 0.7,
            temperature: 0.8,
            ..warm
        },
        Sampling {
            min_p: 0.05,
            top_k: 50,
            top_p: 0.9,
            ..warm
        },
        Sampling {
            repetition_penalty: 1.4,
            ..greedy
        },
        Sampling {
            repetition_penalty: 1.4,
            ..warm
        },
    ];
    let mut occurred = Occurred::default();
    (0..200).step_by(3).for_each(|id| occurred.insert(id));
    let plain = Block {
        sampling: greedy,
        agree: 0,
        drafts: 0,
        finite: true,
        spoiled: None,
        layout: Layout::Contiguous,
    };
    let mut blocks = Vec::new();
    for sampling in samplings {
        for (drafts, agree) in [(0, 0), (1, 0), (1, 1), (15, 0), (15, 6), (15, 15)] {
            blocks.push(Block {
                sampling,
                drafts,
                agree,
                ..plain
            });
        }
    }
    for layout in Layout::ALL {
        blocks.push(Block {
            layout,
            drafts: 5,
            agree: 3,
            ..plain
        });
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for row in [0, 2, 3, 4] {
            for sampling in [greedy, warm] {
                blocks.push(Block {
                    spoiled: Some((row, value)),
                    drafts: 5,
                    agree: 3,
                    sampling,
                    ..plain
                });
            }
        }
    }
    for sampling in [greedy, warm] {
        blocks.push(Block {
            finite: false,
            drafts: 5,
            agree: 3,
            sampling,
            ..plain
        });
        blocks.push(Block {
            finite: false,
            drafts: 5,
            agree: 3,
            spoiled: Some((0, f32::NAN)),
            sampling,
            ..plain
        });
    }
    for block in blocks {
        let rule = RowRule {
            sampling: block.sampling,
            position: 17,
            occurred: &occurred,
        };
        let mut make = j.maker();
        let mut numbers = logits(&mut make, block.drafts + 1, VOCAB, None);
        numbers
            .iter_mut()
            .for_each(|x| *x = round(*x, backend.dtype()));
        let ids = block.drafted(&numbers, &rule);
        if let Some((row, value)) = block.spoiled {
            numbers[row * VOCAB + 100] = value;
        }
        let draft = (block.drafts > 0).then_some(host::Picked {
            ids,
            finite: block.finite,
            rivals: Some(Rivals {
                argmax: 3,
                coupled: 4,
            }),
        });
        let ours = attempt(|| {
            let logits = make.laid_out(&numbers, &[1, block.drafts + 1, VOCAB], block.layout)?;
            let drafted = draft
                .as_ref()
                .map(|d| crate::backend::fallback::upload_picked(backend, d))
                .transpose()?;
            backend.draw(&logits, drafted.as_ref(), &rule)
        });
        let expected = host::draw(&numbers, VOCAB, draft, &rule)
            .expect("invariant: a case suits the reference");
        let margin = tolerance(DType::F32) * 20.0;
        let case = format!("{block:?}");
        match (&ours, &expected) {
            (Ok(Ok(ours)), Ok(expected)) if equal(ours, expected, margin) => {}
            (Ok(Err(ours)), Err(expected)) if ours == expected => {}
            (Ok(ours), _) => j.fail("draw", case, format!("{ours:?}, expected {expected:?}")),
            (Err(e), _) => j.fail("draw", case, format!("error: {e}")),
        }
    }
    j.failures
}

/// Equal but for the rounding of margins.
fn equal(a: &Verdict, b: &Verdict, margin: f32) -> bool {
    let rows = a.rows.len() == b.rows.len()
        && a.rows.iter().zip(&b.rows).all(|(a, b)| {
            a.id == b.id && (a.margin == b.margin || (a.margin - b.margin).abs() <= margin)
        });
    rows && a.drafted == b.drafted && a.draft_finite == b.draft_finite && a.rivals == b.rivals
}

/// Reading counts, computing does not, and a native draw reads once.
pub fn readbacks<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let mut make = j.maker();
    let (rule, occurred) = (
        ProposalRule {
            rows: 4,
            position: 0,
            coupling: None,
        },
        Occurred::default(),
    );
    let counted = attempt(|| {
        let mut count = Vec::new();
        let mut mark = backend.readbacks();
        let mut since = || {
            let now = backend.readbacks();
            count.push(now - std::mem::replace(&mut mark, now));
        };
        let x = backend.add(&make.plain(&[1, 3, 50])?, &make.plain(&[1, 3, 50])?)?;
        since();
        backend.read(&x)?;
        since();
        backend.read_ids(&backend.upload_ids(&[1, 2])?)?;
        since();
        let drafted = backend.propose(&x, &rule)?;
        since();
        let rule = RowRule {
            sampling: Sampling::default(),
            position: 0,
            occurred: &occurred,
        };
        backend.draw(&x, Some(&drafted), &rule)?.ok();
        since();
        Ok(count)
    });
    let held = counted.map(|count: Vec<u64>| {
        let proposed = match backend.implementation(Op::Propose) {
            Implementation::Native => count[3] == 0,
            Implementation::Composite => count[3] >= 1,
        };
        let drawn = match backend.implementation(Op::Draw) {
            Implementation::Native => count[4] == 1,
            Implementation::Composite => count[4] >= 1,
        };
        count[..3] == [0, 1, 1] && proposed && drawn
    });
    j.require(
        "readbacks",
        "add, read, read_ids, propose, draw",
        held,
        "each read counts once, a native proposal never, a native draw once",
    );
    j.failures
}
