//! Caches and draft contexts are plain decoding's after every round, bit for bit.

use std::num::NonZeroUsize;
use std::path::Path;

use super::drive::{self, decode, watch};
use super::fakes::{Behaviour, FakeDraft};
use super::golden;
use super::inspect::{InspectKv, LayerSnapshot, Snapshot, first_apart};
use super::lossless::{Case, load_pair, misbehaved, plain_text};
use crate::Result;
use crate::backend::Backend;
use crate::models::{Target, TargetState};
use crate::spec::{
    DraftModel, EngineParts, Occurred, Pending, Request, RowRule, Rows, Sampling, SpecEngine,
    TargetModel,
};

/// Plain decoding with the state after every token.
#[derive(Debug)]
pub struct PlainStates {
    /// Generated tokens; the last one is not in the last state.
    pub tokens: Vec<u32>,
    /// State i has committed the prompt and i tokens.
    pub states: Vec<Snapshot>,
    prompt: usize,
    tolerance: f32,
}

impl PlainStates {
    /// Decodes greedily, one row a step.
    ///
    /// # Errors
    /// The model's.
    pub fn decode<B: InspectKv>(target: &Target<B>, prompt: &[u32], tokens: usize) -> Result<Self> {
        let mut states = Vec::new();
        let tokens = decode(
            target,
            &mut target.new_state()?,
            prompt,
            tokens,
            Sampling::default(),
            &mut |state| {
                states.push(Snapshot::of(target.backend(), state)?);
                Ok(())
            },
        )?;
        Ok(Self {
            tokens,
            states,
            prompt: prompt.len(),
            tolerance: 0.0,
        })
    }

    /// The same states, from which numbers may be away by a fraction of the largest of their kind: for a backend whose blocks
    /// sum in another order than its single rows.
    #[must_use]
    pub fn within(self, tolerance: f32) -> Self {
        Self { tolerance, ..self }
    }

    /// What a state differs in from plain decoding's at the same position.
    ///
    /// # Errors
    /// The backend's.
    pub fn differences<B: InspectKv>(
        &self,
        backend: &B,
        state: &TargetState<B>,
    ) -> Result<Vec<String>> {
        let position = state.position();
        let Some(plain) = position
            .checked_sub(self.prompt)
            .and_then(|i| self.states.get(i))
        else {
            return Ok(vec![format!("no plain state at position {position}")]);
        };
        Ok(Snapshot::of(backend, state)?.differences(plain, self.tolerance))
    }
}

/// Every cache after every round against plain decoding's, for one behaviour, block and chunk size. Returns what differs.
///
/// # Errors
/// If the target cannot be loaded or a run fails.
pub fn check_rounds<B: InspectKv>(
    backend: &B,
    case: &Case<'_>,
    plain: &PlainStates,
    behaviour: Behaviour,
    chunk: usize,
) -> Result<Vec<String>> {
    let target = golden::load_target(backend, case.target)?;
    let vocab = target.decoder().vocab_size();
    let fake = FakeDraft::new(
        backend,
        behaviour,
        case.prompt,
        &plain.tokens,
        vocab,
        case.block,
    );
    let mut engine: SpecEngine<Target<B>, FakeDraft<B>> =
        drive::engine(backend, case.target, Some(fake))?;
    let request = Request {
        prefill_chunk: chunk,
        ..golden::request(case.prompt, case.tokens)
    };
    let mut found = Vec::new();
    let mut rounds = 0;
    let report = watch(&mut engine, &request, usize::MAX, &mut |state, _, round| {
        if state.position() >= case.prompt.len() {
            rounds += usize::from(round.is_some());
            found.extend(
                plain
                    .differences(backend, state)?
                    .into_iter()
                    .map(|d| format!("{behaviour:?}, chunk {chunk}, round {rounds}: {d}")),
            );
        }
        Ok(())
    })?;
    if rounds == 0 || report.tokens != plain.tokens[..case.tokens] {
        found.push(format!(
            "{behaviour:?}, chunk {chunk}: {rounds} rounds, tokens {}",
            golden::first_difference(&report.tokens, &plain.tokens)
        ));
    }
    found.extend(misbehaved(behaviour, case.block, &report));
    Ok(found)
}

/// A block whose first `keep` rows are committed, for every `keep`; a block that is dropped; and one of which too much is
/// asked. Caches and tap rows against plain decoding's, within a `tolerance` as [`PlainStates::within`] has it. Returns what differs.
///
/// # Errors
/// If the target cannot be loaded or a run fails.
pub fn check_commits<B: InspectKv>(
    backend: &B,
    case: &Case<'_>,
    tolerance: f32,
) -> Result<Vec<String>> {
    let mut target = golden::load_target(backend, case.target)?;
    let depth = target.decoder().depth();
    target.set_taps(&[0, depth / 2, depth - 1])?;
    let plain = PlainStates::decode(&target, case.prompt, 2 * case.block + 4)?.within(tolerance);
    let plain_taps = plain_taps(&target, case.prompt, &plain.tokens)?;
    let fake = FakeDraft::new(
        backend,
        Behaviour::Oracle,
        case.prompt,
        &plain.tokens,
        target.decoder().vocab_size(),
        case.block,
    );
    let mut found = Vec::new();
    let occurred = Occurred::default();
    for start in [0, 3] {
        let ids = [case.prompt, &plain.tokens[..start]].concat();
        let before = drive::prefilled(&target, &ids)?;
        let anchor = plain.tokens[start];
        let rest = &plain.tokens[start + 1..start + case.block];
        let rule = RowRule {
            sampling: Sampling::default(),
            position: ids.len() + 1,
            occurred: &occurred,
        };
        for keep in 1..=case.block {
            let place = |what: &str| format!("block at {}, {what} {keep}", ids.len());
            let mut state = before.fork()?;
            // Rows past `keep` are wrong, so that nothing of them may stay.
            let mut drafts = rest.to_vec();
            drafts[keep - 1..]
                .iter_mut()
                .for_each(|id| *id = fake.wrong(*id));
            let drafted = fake.drafted(&drafts, true)?;
            // Dropped, before and after it was read.
            drop(target.verify(&mut state, anchor, Some(&drafted))?);
            found.extend(labelled(
                &place("dropped unread"),
                plain.differences(backend, &state)?,
            ));
            let mut pending = target.verify(&mut state, anchor, Some(&drafted))?;
            pending.choose(&rule)?;
            drop(pending);
            found.extend(labelled(
                &place("dropped"),
                plain.differences(backend, &state)?,
            ));
            // More than there is.
            let pending = target.verify(&mut state, anchor, Some(&drafted))?;
            if pending.commit(rows(case.block + 1)).is_ok() {
                found.push(place("more rows were kept than verified"));
            }
            found.extend(labelled(
                &place("refused"),
                plain.differences(backend, &state)?,
            ));
            // Committed.
            let mut pending = target.verify(&mut state, anchor, Some(&drafted))?;
            let verdict = pending.choose(&rule)?;
            if verdict.rows.len() != keep {
                found.push(place("the verdict does not end at the wrong row"));
            }
            let context = pending.commit(rows(keep))?;
            found.extend(labelled(
                &place("committed"),
                plain.differences(backend, &state)?,
            ));
            for (tap, own) in context.taps.iter().enumerate() {
                let at = case.prompt.len() + start;
                let width = plain_taps[tap].len() / (case.prompt.len() + plain.tokens.len());
                let own = bits(&backend.read(own)?);
                let all = bits(&plain_taps[tap][at * width..(at + keep) * width]);
                if own.len() != all.len() || first_apart(&own, &all, tolerance).is_some() {
                    found.push(place("tap rows differ"));
                }
            }
            // And on from there, plainly.
            let mut chosen = plain.tokens[..=start + keep].to_vec();
            drive::go_on(
                &target,
                &mut state,
                &mut chosen,
                start + keep + 3,
                Sampling::default(),
                &mut Occurred::default(),
                &mut |state| {
                    found.extend(labelled(
                        &place("after"),
                        plain.differences(backend, state)?,
                    ));
                    Ok(())
                },
            )?;
            if chosen != plain.tokens[..chosen.len()] {
                found.push(place("the text goes on differently after"));
            }
        }
    }
    Ok(found)
}

/// The context of a real draft after every round against the one that absorbs the same tokens at once: partial and full
/// rejections, before and after its window has wrapped. Returns what differs, and how many rounds were compared.
///
/// # Errors
/// If a folder cannot be loaded or a run fails.
pub fn check_draft_context<B: InspectKv>(
    backend: &B,
    case: &Case<'_>,
    draft: &Path,
) -> Result<(Vec<String>, usize)> {
    let (target, fresh) = load_pair(backend, case.target, draft, None)?;
    let plain = plain_text(backend, case, Sampling::default())?;
    let text = [case.prompt, &plain].concat();
    let (model, drafter) = load_pair(backend, case.target, draft, None)?;
    let mut engine = SpecEngine::new(EngineParts {
        target: model,
        draft: Some(drafter),
        decoder: None,
        report: drive::load_report(backend, case.target)?,
        readbacks: |t: &Target<B>| t.backend().readbacks(),
    });
    let request = Request {
        prefill_chunk: 5,
        ..golden::request(case.prompt, case.tokens)
    };
    let (mut found, mut rounds) = (Vec::new(), 0);
    watch(
        &mut engine,
        &request,
        usize::MAX,
        &mut |state, context, round| {
            let (Some(round), Some(context)) = (round, context) else {
                return Ok(());
            };
            rounds += 1;
            let taps = target.prefill(&mut target.new_state()?, &text[..state.position()])?;
            let mut at_once = fresh.new_state()?;
            fresh.absorb(&mut at_once, taps, state.position())?;
            for (layer, (own, fresh)) in context
                .contexts()
                .iter()
                .zip(at_once.contexts())
                .enumerate()
            {
                if LayerSnapshot::of_kv(backend, own)? != LayerSnapshot::of_kv(backend, fresh)? {
                    found.push(format!(
                        "draft layer {layer} after round {rounds}, which produced {}",
                        round.produced
                    ));
                }
            }
            Ok(())
        },
    )?;
    Ok((found, rounds))
}

/// The tap rows of prompt and tokens, from one prompt pass: `[rows, hidden]` per tap.
fn plain_taps<B: Backend>(
    target: &Target<B>,
    prompt: &[u32],
    tokens: &[u32],
) -> Result<Vec<Vec<f32>>> {
    let mut state = target.new_state()?;
    let context = target.prefill(&mut state, &[prompt, tokens].concat())?;
    context
        .taps
        .iter()
        .map(|t| target.backend().read(t))
        .collect()
}

fn rows(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn labelled(place: &str, differences: Vec<String>) -> impl Iterator<Item = String> {
    differences
        .into_iter()
        .map(move |d| format!("{place}: {d}"))
}
