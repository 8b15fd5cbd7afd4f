//! Errors in the middle of a round, one after every single operation.

use std::num::NonZeroUsize;
use std::path::Path;

use super::drive::{self, finish, go_on};
use super::fakes::{Behaviour, FakeDraft};
use super::fault::{Fault, Faulty};
use super::golden;
use super::inspect::{InspectKv, Snapshot};
use super::lossless::{Case, load_pair};
use super::states::PlainStates;
use crate::Result;
use crate::draft::Draft;
use crate::models::{Context, Target};
use crate::spec::{
    DraftModel, Engine, Occurred, Pending, ProposalRule, RowRule, Rows, Sampling, SpecEngine, Step,
    TargetModel,
};

/// Fails after every number of operations of a prompt and of a round that keeps part of its block: the state is as before
/// and plain decoding goes on from it. Returns what differs, and how many places were tried.
///
/// # Errors
/// If a folder cannot be loaded.
pub fn check_faults<B: InspectKv>(
    inner: &B,
    case: &Case<'_>,
    draft: &Path,
) -> Result<(Vec<String>, usize)> {
    let faulty = Faulty::new(inner);
    let (target, draft) = load_pair(&faulty, case.target, draft, None)?;
    let plain = PlainStates::decode(&target, case.prompt, case.block + 4)?;
    let mut found = Vec::new();
    let mut places = 0;

    // The prompt, from a state that has seen its first half.
    let (start, rest) = case.prompt.split_at(case.prompt.len() / 2);
    let mut state = drive::prefilled(&target, start)?;
    let before = Snapshot::of(&faulty, &state)?;
    for call in 0.. {
        faulty.set(Some(Fault::Fail(call)));
        let done = target.prefill_last(&mut state, rest).map(|_| ());
        faulty.set(None);
        if done.is_ok() {
            found.extend(plain.differences(&faulty, &state)?);
            break;
        }
        places += 1;
        let now = Snapshot::of(&faulty, &state)?;
        let differences = now.differences(&before, 0.0);
        found.extend(
            differences
                .into_iter()
                .map(|d| format!("prompt, call {call}: {d}")),
        );
    }

    // A round: three of the drafts are right.
    let mut context = draft.new_state()?;
    let mut prompt_rows = target.new_state()?;
    let rows = target.prefill(&mut prompt_rows, case.prompt)?;
    draft.absorb(&mut context, rows, case.prompt.len())?;
    let fake = FakeDraft::new(
        &faulty,
        Behaviour::Half(3),
        case.prompt,
        &plain.tokens,
        target.decoder().vocab_size(),
        case.block,
    );
    let mut drafts = plain.tokens[1..case.block].to_vec();
    drafts[3..].iter_mut().for_each(|id| *id = fake.wrong(*id));
    let drafted = fake.drafted(&drafts, true)?;
    let occurred = Occurred::default();
    let rule = RowRule {
        sampling: Sampling::default(),
        position: case.prompt.len() + 1,
        occurred: &occurred,
    };
    let proposal = ProposalRule {
        rows: case.block,
        position: case.prompt.len(),
        coupling: None,
    };
    for call in 0.. {
        faulty.set(Some(Fault::Fail(call)));
        let round = (|| -> Result<Context<Faulty<B>>> {
            draft.propose(&mut context, plain.tokens[0], &proposal)?;
            let mut pending = target.verify(&mut state, plain.tokens[0], Some(&drafted))?;
            let keep = pending.choose(&rule)?.rows.len();
            pending.commit(NonZeroUsize::new(keep).unwrap_or(NonZeroUsize::MIN))
        })();
        faulty.set(None);
        let place = |d| format!("round, call {call}: {d}");
        found.extend(plain.differences(&faulty, &state)?.into_iter().map(place));
        match round {
            Ok(rows) => {
                if rows.rows != 4 {
                    found.push(format!("{} rows were kept, expected 4", rows.rows));
                }
                break;
            }
            Err(_) => places += 1,
        }
        // Plain decoding goes on from what the failure left.
        let mut on = state.fork()?;
        let mut chosen = plain.tokens[..1].to_vec();
        go_on(
            &target,
            &mut on,
            &mut chosen,
            3,
            Sampling::default(),
            &mut Occurred::default(),
            &mut |state| {
                found.extend(plain.differences(&faulty, state)?.into_iter().map(place));
                Ok(())
            },
        )?;
        if chosen != plain.tokens[..3] {
            found.push(place("the text goes on differently".into()));
        }
    }
    Ok((found, places))
}

/// Fails after every `stride`-th number of operations of a step of the engine, with a real draft: the draft's failures
/// cost proposals, the target's end the request, and the next request is as ever. Returns what differs, and how many
/// requests lost their draft and how many ended.
///
/// # Errors
/// If a folder cannot be loaded.
pub fn check_engine_faults<B: InspectKv>(
    inner: &B,
    case: &Case<'_>,
    draft: &Path,
    stride: usize,
) -> Result<(Vec<String>, [usize; 2])> {
    let faulty = Faulty::new(inner);
    let (target, draft) = load_pair(&faulty, case.target, draft, None)?;
    let plain = PlainStates::decode(&target, case.prompt, case.tokens)?.tokens;
    let report = drive::load_report(&faulty, case.target)?;
    let mut engine: SpecEngine<Target<Faulty<B>>, Draft<Faulty<B>>> =
        SpecEngine::new(crate::spec::EngineParts {
            target,
            draft: Some(draft),
            decoder: None,
            report,
            readbacks: |_| 0,
        });
    let mut found = Vec::new();
    let mut seen = [0, 0];
    let request = golden::request(case.prompt, case.tokens);
    // Step 0 is the prompt, step 2 the second round.
    for bad_step in [0, 2] {
        for call in (0..).step_by(stride) {
            let id = engine.start(request.clone())?;
            for _ in 0..bad_step {
                engine.step(id, &mut |_| {})?;
            }
            faulty.set(Some(Fault::Fail(call)));
            let outcome = engine.step(id, &mut |_| {});
            let calls = faulty.calls();
            faulty.set(None);
            let place = format!("step {bad_step}, call {call}");
            match outcome {
                Err(_) => {
                    seen[1] += 1;
                    let next = finish(&mut engine, &request)?;
                    if next.tokens != plain || !next.draft_active || next.drafted == 0 {
                        found.push(format!("{place}: the next request suffers"));
                    }
                }
                Ok(Step::Finished(_)) => found.push(format!("{place}: it ended too early")),
                Ok(Step::Running) => {
                    let report = loop {
                        if let Step::Finished(report) = engine.step(id, &mut |_| {})? {
                            break *report;
                        }
                    };
                    if report.tokens != plain {
                        found.push(format!("{place}: the text changed"));
                    }
                    let reached = call < calls;
                    if reached == report.draft_active {
                        found.push(format!(
                            "{place}: the fault was reached: {reached}, drafting: {}",
                            report.draft_active
                        ));
                    }
                    if !reached {
                        break;
                    }
                    seen[0] += 1;
                }
            }
        }
    }
    Ok((found, seen))
}
