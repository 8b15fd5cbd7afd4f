//! The round loop over a hand-written target: what is accepted, and what happens when something fails in a round.

use dflash_core::Error;
use dflash_core::spec::{Engine, FinishReason, Report, Request, Step};
use dflash_core::testing::drive::{finish, watch};
use dflash_core::testing::scripted::{
    Fault, Logits, ScriptedDraft, ScriptedEngine, ScriptedTarget, Skill, Stage, engine,
};

const TABLE: Logits = Logits::Table { seed: 5, vocab: 5 };
const PROMPT: [u32; 3] = [1, 4, 2];

fn with(skill: Skill) -> ScriptedEngine {
    engine(
        ScriptedTarget::new(TABLE),
        Some(ScriptedDraft::new(&TABLE, skill, 8)),
        None,
        10_000,
    )
}

fn request(max_tokens: usize) -> Request {
    Request {
        prompt: PROMPT.to_vec(),
        max_tokens,
        prefill_chunk: 2,
        ..Request::default()
    }
}

fn plain(max_tokens: usize) -> Vec<u32> {
    let mut engine = engine(
        ScriptedTarget::new(TABLE),
        None::<ScriptedDraft>,
        None,
        10_000,
    );
    let report = finish(&mut engine, &request(max_tokens)).expect("it runs");
    assert_eq!(
        report.rounds,
        max_tokens - 1,
        "the first token comes from the prompt"
    );
    report.tokens
}

fn run(skill: Skill, max_tokens: usize) -> Report {
    let report = finish(&mut with(skill), &request(max_tokens)).expect("it runs");
    assert_eq!(report.tokens, plain(max_tokens));
    assert!(report.rounds > 0 && report.drafted > 0);
    report
}

#[test]
fn rounds_are_as_long_as_their_right_prefix() {
    let patterns: [&[usize]; 6] = [
        &[0, 1, 7, 0],
        &[7, 7, 0, 3],
        &[0, 0, 0, 0, 7],
        &[1, 2, 3, 4, 5, 6, 7],
        &[6, 0],
        &[0],
    ];
    for pattern in patterns {
        let report = run(Skill::Pattern(pattern.to_vec()), 60);
        let full = &report.acceptance_lengths[..report.rounds - 1];
        for (length, right) in full.iter().zip(pattern.iter().cycle()) {
            assert_eq!(*length, right + 1, "{pattern:?}: {full:?}");
        }
        assert_eq!(report.accepted == 0, pattern == [0], "{pattern:?}");
        assert_eq!(
            report.acceptance_lengths.iter().sum::<usize>(),
            59,
            "every token but the first belongs to a round"
        );
    }
}

#[test]
fn caches_and_context_hold_the_committed_tokens_after_every_round() {
    let text = [&PROMPT[..], &plain(60)].concat();
    let mut engine = with(Skill::Pattern(vec![0, 3, 7, 1]));
    let mut rounds = 0;
    watch(
        &mut engine,
        &request(60),
        usize::MAX,
        &mut |state, draft, round| {
            assert_eq!(state.tokens(), &text[..state.tokens().len()]);
            assert_eq!(draft.expect("it drafts").tokens(), state.tokens());
            if let Some(round) = round {
                assert_eq!(round.context + round.produced, state.tokens().len());
                rounds += 1;
            }
            Ok(())
        },
    )
    .expect("it runs");
    assert!(rounds > 5);
}

#[test]
fn one_read_back_a_round() {
    let mut engine = with(Skill::Pattern(vec![2, 7, 0]));
    let report = finish(&mut engine, &request(60)).expect("it runs");
    assert_eq!(
        engine.readbacks(),
        report.rounds as u64 + 1,
        "and one for the prompt"
    );
    assert!(report.drafted > 0);
}

/// A draft that fails costs its proposals: the request goes on plainly, and the report says why.
#[test]
fn a_draft_that_fails_ends_drafting_only() {
    for after in [0, 1, 3] {
        for absorbing in [false, true] {
            let mut engine = with(Skill::Pattern(vec![3]));
            let draft = engine.draft().expect("there is a draft");
            if absorbing {
                draft.fail_to_absorb(after);
            } else {
                draft.fail_to_propose(after);
            }
            let report = finish(&mut engine, &request(40)).expect("the request goes on");
            assert_eq!(report.tokens, plain(40));
            assert!(report.draft_requested && !report.draft_active);
            let reason = report.draft_inactive_reason.expect("a reason");
            assert!(reason.contains("the draft failed"), "{reason}");
            assert!(report.notes.iter().any(|n| n.contains("the draft failed")));
            // With chunks of two, the prompt of three is absorbed in two calls.
            let in_prompt = absorbing && after < 2;
            assert_eq!(report.drafted == 0, in_prompt || (!absorbing && after == 0));
            // The next request drafts again.
            let next = finish(&mut engine, &request(40)).expect("it runs");
            assert_eq!(next.tokens, plain(40));
            assert!(next.draft_active && next.accepted > 0);
        }
    }
}

#[test]
fn blocks_that_are_not_finite_are_dropped_and_the_second_ends_drafting() {
    // One bad block costs one round.
    let report = run(Skill::Overflows(vec![1]), 40);
    assert_eq!(report.non_finite_drafts, 1);
    assert_eq!(&report.acceptance_lengths[..3], [8, 1, 8]);
    assert!(report.draft_active);
    // Two end drafting, wherever they are.
    let report = run(Skill::Overflows(vec![1, 3]), 60);
    assert_eq!(report.non_finite_drafts, 2);
    assert_eq!(&report.acceptance_lengths[..5], [8, 1, 8, 1, 1]);
    assert!(!report.draft_active && report.draft_requested);
    assert!(
        report
            .draft_inactive_reason
            .expect("a reason")
            .contains("not finite")
    );
}

/// The request ends with the error, its memory is freed, others and later ones are untouched.
#[test]
fn a_target_that_fails_ends_its_request_only() {
    let stages = [
        Stage::Prefill,
        Stage::Verify,
        Stage::Choose,
        Stage::Commit,
        Stage::Settle,
    ];
    for stage in stages {
        for after in 0..4 {
            let mut engine = with(Skill::Pattern(vec![2, 7, 0]));
            let bystander = engine.start(request(40)).expect("it starts");
            for _ in 0..3 {
                engine.step(bystander, &mut |_| {}).expect("it runs");
            }
            engine.target().fail(Fault { stage, after });
            let id = engine.start(request(40)).expect("it starts");
            let mut tokens = Vec::new();
            let error = loop {
                let step = engine.step(id, &mut |event| {
                    if let dflash_core::spec::Event::Tokens { ids, .. } = event {
                        tokens.extend(ids);
                    }
                });
                match step {
                    Ok(Step::Running) => {}
                    // The prompt has two chunks, and two settles, only.
                    Ok(Step::Finished(report)) => {
                        let in_prompt = matches!(stage, Stage::Prefill | Stage::Settle);
                        assert!(in_prompt && after >= 2, "{stage:?} after {after}");
                        assert_eq!(report.tokens, plain(40));
                        break None;
                    }
                    Err(error) => break Some(error),
                }
            };
            engine.target().heal();
            if let Some(error) = error {
                assert_eq!(
                    tokens,
                    plain(40)[..tokens.len()],
                    "what came before the error stands"
                );
                match (stage, &error) {
                    (Stage::Choose, Error::NonFinite { position, .. }) => {
                        assert_eq!(*position, PROMPT.len() - 1 + tokens.len());
                    }
                    (Stage::Choose, other) => panic!("{other}"),
                    (_, Error::Backend { .. }) => {}
                    (_, other) => panic!("{stage:?}: {other}"),
                }
                let again = engine.step(id, &mut |_| {});
                assert!(again.is_err(), "a failed request is over");
                assert_eq!(engine.target().alive(), 1, "its caches are freed");
            }
            let report = loop {
                if let Step::Finished(report) = engine
                    .step(bystander, &mut |_| {})
                    .expect("the other request goes on")
                {
                    break report;
                }
            };
            assert_eq!(report.tokens, plain(40), "{stage:?} after {after}");
            assert!(report.drafted > 0 && report.draft_active);
            let next = finish(&mut engine, &request(40)).expect("the engine stays usable");
            assert_eq!(next.tokens, plain(40), "{stage:?} after {after}");
            assert_eq!(next.finish_reason, FinishReason::Length);
            assert!(next.accepted > 0);
        }
    }
}

/// A block's state is before it again, whatever failed, and plain decoding goes on from there.
#[test]
fn a_block_that_fails_leaves_the_state_before_it() {
    use dflash_core::spec::{
        Occurred, Pending, ProposalRule, RowRule, Rows, Sampling, TargetModel,
    };
    use dflash_core::testing::drive::{decode, go_on};
    let target = ScriptedTarget::new(TABLE);
    let whole = plain(30);
    for stage in [Stage::Verify, Stage::Choose, Stage::Commit] {
        let draft = ScriptedDraft::new(&TABLE, Skill::Pattern(vec![4]), 8);
        let mut state = target.new_state().expect("a state");
        let mut tokens = decode(
            &target,
            &mut state,
            &PROMPT,
            5,
            Sampling::default(),
            &mut |_| Ok(()),
        )
        .expect("it decodes");
        let before = state.tokens().to_vec();
        let mut context = dflash_core::spec::DraftModel::new_state(&draft).expect("a context");
        let rows = before
            .iter()
            .enumerate()
            .map(|(position, token)| dflash_core::testing::scripted::TapRow {
                position,
                token: *token,
            })
            .collect();
        dflash_core::spec::DraftModel::absorb(&draft, &mut context, rows, before.len())
            .expect("it absorbs");
        let anchor = tokens[4];
        let rule = ProposalRule {
            rows: 8,
            position: before.len(),
            coupling: None,
        };
        let proposal = dflash_core::spec::DraftModel::propose(&draft, &mut context, anchor, &rule)
            .expect("it proposes");
        target.fail(Fault { stage, after: 0 });
        let occurred = Occurred::default();
        let rule = RowRule {
            sampling: Sampling::default(),
            position: before.len() + 1,
            occurred: &occurred,
        };
        let failed = (|| -> dflash_core::Result<()> {
            let mut pending = target.verify(&mut state, anchor, Some(&proposal))?;
            let verdict = pending.choose(&rule)?;
            assert_eq!(verdict.rows.len(), 5);
            pending.commit(std::num::NonZeroUsize::MIN)?;
            Ok(())
        })();
        assert!(failed.is_err(), "{stage:?}");
        assert_eq!(state.tokens(), before);
        go_on(
            &target,
            &mut state,
            &mut tokens,
            30,
            Sampling::default(),
            &mut Occurred::default(),
            &mut |_| Ok(()),
        )
        .expect("it goes on");
        assert_eq!(tokens, whole);
    }
}
