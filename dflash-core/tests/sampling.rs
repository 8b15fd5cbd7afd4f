//! Sampling is lossless: the histogram is the target's distribution, and a seed's text does not depend on the draft.

use dflash_core::spec::{Engine, Event, Request, Sampling, Step};
use dflash_core::testing::drive::finish;
use dflash_core::testing::scripted::{
    Kind, Logits, ScriptedDraft, ScriptedEngine, ScriptedTarget, Skill, engine,
};

const VOCAB: usize = 5;
const TABLE: Logits = Logits::Table {
    seed: 11,
    vocab: VOCAB,
};
const PROMPT: [u32; 2] = [3, 1];
const SEEDS: u64 = 20_000;

fn with(kind: Kind) -> ScriptedEngine {
    let skill = Skill::Noisy {
        error: 1.5,
        seed: 4,
    };
    let draft = ScriptedDraft::new(&TABLE, skill, 8).proposing(kind);
    engine(ScriptedTarget::new(TABLE), Some(draft), None, 1000)
}

fn request(sampling: Sampling, max_tokens: usize) -> Request {
    Request {
        prompt: PROMPT.to_vec(),
        max_tokens,
        sampling,
        ..Request::default()
    }
}

fn warm(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.0,
        seed,
        ..Sampling::default()
    }
}

/// The distribution after a prefix, from the definitions: temperature, top-k, top-p on what is left, min-p.
fn distribution(prefix: &[u32], s: &Sampling) -> Vec<f64> {
    let logits = TABLE.after(prefix);
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut p: Vec<(usize, f64)> = logits
        .iter()
        .map(|l| f64::from((l - best) / s.temperature).exp())
        .enumerate()
        .collect();
    p.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if s.top_k > 0 {
        p.truncate(s.top_k);
    }
    let total: f64 = p.iter().map(|x| x.1).sum();
    let mut before = 0.0;
    p.retain(|x| {
        let stays = before < f64::from(s.top_p) * total || before == 0.0;
        before += x.1;
        stays
    });
    let largest = p[0].1;
    p.retain(|x| x.1 >= f64::from(s.min_p) * largest);
    let total: f64 = p.iter().map(|x| x.1).sum();
    let mut all = vec![0.0; logits.len()];
    for (id, weight) in p {
        all[id] = weight / total;
    }
    all
}

/// Probabilities of all texts of three tokens.
fn joint(s: &Sampling) -> Vec<f64> {
    let mut all = vec![0.0; VOCAB.pow(3)];
    let ids = 0..VOCAB as u32;
    for a in ids.clone() {
        let first = distribution(&PROMPT, s)[a as usize];
        for b in ids.clone() {
            let second = distribution(&[&PROMPT[..], &[a]].concat(), s)[b as usize];
            for c in ids.clone() {
                let third = distribution(&[&PROMPT[..], &[a, b]].concat(), s)[c as usize];
                all[cell(&[a, b, c])] = first * second * third;
            }
        }
    }
    all
}

fn cell(tokens: &[u32]) -> usize {
    tokens.iter().fold(0, |n, t| n * VOCAB + *t as usize)
}

/// Pearson's statistic and the value that a right histogram exceeds once in ten thousand tries (Wilson and Hilferty's
/// approximation). Cells that expect fewer than five are counted together; one that expects none must be empty.
fn chi_square(counts: &[u64], expected: &[f64]) -> (f64, f64) {
    let total: u64 = counts.iter().sum();
    let (mut statistic, mut cells) = (0.0, 0.0);
    let (mut rare_count, mut rare_expected) = (0.0, 0.0);
    let mut add = |count: f64, expected: f64| {
        statistic += (count - expected).powi(2) / expected;
        cells += 1.0;
    };
    for (count, p) in counts.iter().zip(expected) {
        let (count, expected) = (*count as f64, p * total as f64);
        if expected == 0.0 {
            assert_eq!(count, 0.0, "a token that the filters exclude was drawn");
        } else if expected < 5.0 {
            rare_count += count;
            rare_expected += expected;
        } else {
            add(count, expected);
        }
    }
    if rare_expected > 1.0 {
        add(rare_count, rare_expected);
    }
    let freedom: f64 = cells - 1.0;
    let spread = 2.0 / (9.0 * freedom);
    (
        statistic,
        freedom * (1.0 - spread + 3.72 * spread.sqrt()).powi(3),
    )
}

/// Histograms of the first token and of the first three jointly.
fn histograms(kind: Kind, sampling: Sampling) -> [Vec<u64>; 2] {
    let mut engine = with(kind);
    let mut counts = [vec![0; VOCAB], vec![0; VOCAB.pow(3)]];
    let (mut drafted, mut accepted) = (0, 0);
    for seed in 0..SEEDS {
        let report =
            finish(&mut engine, &request(Sampling { seed, ..sampling }, 3)).expect("it runs");
        counts[0][report.tokens[0] as usize] += 1;
        counts[1][cell(&report.tokens)] += 1;
        drafted += report.drafted;
        accepted += report.accepted;
    }
    assert!(
        accepted > 5_000 && accepted < drafted,
        "{accepted} of {drafted} were right"
    );
    counts
}

fn variants() -> [Sampling; 5] {
    [
        warm(0),
        Sampling {
            top_k: 3,
            ..warm(0)
        },
        Sampling {
            top_p: 0.8,
            ..warm(0)
        },
        Sampling {
            top_k: 4,
            top_p: 0.7,
            ..warm(0)
        },
        Sampling {
            temperature: 0.6,
            min_p: 0.1,
            ..warm(0)
        },
    ]
}

fn fits(kind: Kind) {
    for sampling in variants() {
        let [first, three] = histograms(kind, sampling);
        for (counts, expected) in [
            (first, distribution(&PROMPT, &sampling)),
            (three, joint(&sampling)),
        ] {
            let (statistic, limit) = chi_square(&counts, &expected);
            assert!(
                statistic < limit,
                "{kind:?} {sampling:?}: {statistic:.1}, at most {limit:.1}"
            );
        }
    }
}

#[test]
fn argmax_proposals_keep_the_distribution() {
    fits(Kind::Argmax);
}

#[test]
fn coupled_proposals_keep_the_distribution() {
    fits(Kind::Coupled);
}

#[test]
fn proposals_of_the_loop_s_choice_keep_the_distribution() {
    fits(Kind::AsAsked);
}

/// The test above can fail: neighbouring distributions do not fit.
#[test]
fn another_distribution_does_not_fit() {
    let [first, three] = histograms(Kind::AsAsked, warm(0));
    let other = Sampling {
        temperature: 1.1,
        ..warm(0)
    };
    let (statistic, limit) = chi_square(&first, &distribution(&PROMPT, &other));
    assert!(statistic > limit, "{statistic:.1} {limit:.1}");
    let (statistic, limit) = chi_square(&three, &joint(&other));
    assert!(statistic > limit, "{statistic:.1} {limit:.1}");
    // Tokens that do not depend on each other.
    let alone = distribution(&PROMPT, &warm(0));
    let independent: Vec<f64> = (0..VOCAB.pow(3))
        .map(|i| alone[i / 25] * alone[i / 5 % 5] * alone[i % 5])
        .collect();
    let (statistic, limit) = chi_square(&three, &independent);
    assert!(statistic > limit, "{statistic:.1} {limit:.1}");
}

fn tokens(engine: &mut ScriptedEngine, request: &Request) -> Vec<u32> {
    let report = finish(engine, request).expect("it runs");
    let drafts = request.draft && request.block_size != Some(1);
    assert_eq!(report.drafted > 0, drafts);
    assert!(!drafts || report.accepted > 0);
    report.tokens
}

#[test]
fn a_seed_gives_one_text() {
    for sampling in variants() {
        let mut texts = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let request = request(Sampling { seed, ..sampling }, 80);
            let plain = Request {
                draft: false,
                ..request.clone()
            };
            let wanted = tokens(&mut with(Kind::AsAsked), &plain);
            for kind in [Kind::AsAsked, Kind::Argmax, Kind::Coupled] {
                for block in [2, 5, 8] {
                    let request = Request {
                        block_size: Some(block),
                        prefill_chunk: 1,
                        ..request.clone()
                    };
                    assert_eq!(
                        tokens(&mut with(kind), &request),
                        wanted,
                        "{kind:?}, block {block}"
                    );
                }
            }
            texts.insert(wanted);
        }
        assert_eq!(texts.len(), 20, "seeds give different texts");
    }
}

#[test]
fn filters_that_leave_one_token_are_greedy() {
    let greedy = tokens(&mut with(Kind::AsAsked), &request(Sampling::default(), 60));
    for seed in 0..10 {
        for sampling in [
            Sampling {
                top_k: 1,
                ..warm(seed)
            },
            Sampling {
                top_p: 0.0001,
                ..warm(seed)
            },
            Sampling {
                min_p: 1.0,
                ..warm(seed)
            },
        ] {
            assert_eq!(
                tokens(&mut with(Kind::AsAsked), &request(sampling, 60)),
                greedy
            );
        }
    }
}

/// A row sees the drafts before it, and nothing of a rejected row stays.
#[test]
fn the_repetition_penalty_is_that_of_plain_decoding() {
    let mut changed = 0;
    for seed in 0..40 {
        for (temperature, penalty) in [(0.0, 1.3), (0.0, 0.7), (1.0, 1.2), (0.8, 2.5)] {
            let sampling = Sampling {
                temperature,
                repetition_penalty: penalty,
                ..warm(seed)
            };
            let vocab = 40;
            let table = Logits::Table { seed, vocab };
            let make = |right: Option<Vec<usize>>| {
                let skill = right.map_or(Skill::Noisy { error: 0.8, seed }, Skill::Pattern);
                engine(
                    ScriptedTarget::new(table.clone()),
                    Some(ScriptedDraft::new(&table, skill, 8)),
                    None,
                    1000,
                )
            };
            let request = request(sampling, 60);
            let plain = Request {
                draft: false,
                ..request.clone()
            };
            let wanted = finish(&mut make(None), &plain).expect("it runs").tokens;
            for skill in [None, Some(vec![7]), Some(vec![0, 4, 2])] {
                let report = finish(&mut make(skill), &request).expect("it runs");
                assert_eq!(report.tokens, wanted, "{sampling:?}");
                assert!(report.drafted > 0);
            }
            let without = Request {
                sampling: Sampling {
                    repetition_penalty: 1.0,
                    ..sampling
                },
                ..plain
            };
            let unpenalised = finish(&mut make(None), &without).expect("it runs").tokens;
            changed += usize::from(unpenalised != wanted);
        }
    }
    assert!(changed > 100, "the penalty changes texts, {changed} of 160");
}

/// Both kinds of proposals are used over a text, each where it hits more.
#[test]
fn the_loop_uses_both_kinds_of_proposals() {
    let mut asked = std::collections::BTreeSet::new();
    for seed in 0..4 {
        let request = request(warm(seed), 200);
        let acceptance = |kind| {
            let mut engine = with(kind);
            let id = engine.start(request.clone()).expect("it starts");
            let mut lengths = Vec::new();
            while let Step::Running = engine
                .step(id, &mut |event| {
                    if let Event::Round(round) = event {
                        lengths.push(round.produced);
                    }
                })
                .expect("it runs")
            {}
            lengths
        };
        let own = acceptance(Kind::AsAsked);
        asked.insert(own == acceptance(Kind::Argmax));
        asked.insert(own == acceptance(Kind::Coupled));
    }
    assert!(asked.contains(&false), "the loop never left one kind");
}
