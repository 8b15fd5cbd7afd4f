//! Runs requests on engines that tests build themselves.

use std::path::Path;

use crate::backend::Backend;
use crate::load::LoadReport;
use crate::models::{Target, TargetState};
use crate::spec::{
    DraftModel, Engine, EngineParts, Event, Occurred, Pending, Report, Request, Round, RowRule,
    Rows, Sampling, SpecEngine, Step, TargetModel,
};
use crate::testing::golden;
use crate::{Error, Result};

/// An engine of a folder's target and any draft of its type.
///
/// # Errors
/// Whatever loading finds.
pub fn engine<B: Backend, D: DraftModel<Target<B>>>(
    backend: &B,
    target: &Path,
    draft: Option<D>,
) -> Result<SpecEngine<Target<B>, D>> {
    let report = load_report(backend, target)?;
    Ok(SpecEngine::new(EngineParts {
        target: golden::load_target(backend, target)?,
        draft,
        decoder: None,
        report,
        readbacks: |t: &Target<B>| t.backend().readbacks(),
    }))
}

/// What loading a folder's target alone reports.
///
/// # Errors
/// Whatever loading finds.
pub fn load_report<B: Backend>(backend: &B, target: &Path) -> Result<LoadReport> {
    Ok(golden::load(backend, target, None)?.engine.report().clone())
}

/// Runs a request to its end.
///
/// # Errors
/// The engine's.
pub fn finish(engine: &mut dyn Engine, request: &Request) -> Result<Report> {
    let id = engine.start(request.clone())?;
    loop {
        if let Step::Finished(report) = engine.step(id, &mut |_| {})? {
            return Ok(*report);
        }
    }
}

/// What [`watch`] calls: target state, draft state and round.
pub type Watcher<'a, T, D> = dyn FnMut(&T, Option<&D>, Option<&Round>) -> Result<()> + 'a;

/// Runs a request for some steps after its prompt, then cancels it. `watch` sees both states after every step and the
/// round that led to them, `None` for a prompt chunk.
///
/// # Errors
/// The engine's, or those of `watch`.
pub fn watch<T: TargetModel + std::fmt::Debug, D: DraftModel<T> + std::fmt::Debug>(
    engine: &mut SpecEngine<T, D>,
    request: &Request,
    rounds: usize,
    watch: &mut Watcher<'_, T::State, D::State>,
) -> Result<Report> {
    let id = engine.start(request.clone())?;
    let mut done = 0;
    while done < rounds {
        let mut round = None;
        let step = engine.step(id, &mut |event| {
            if let Event::Round(r) = event {
                round = Some(r);
            }
        })?;
        if let Step::Finished(report) = step {
            return Ok(*report);
        }
        done += usize::from(round.is_some());
        let state = engine
            .target_state(id)
            .ok_or_else(|| Error::request("watch", "a running request has a state"))?;
        watch(state, engine.draft_state(id), round.as_ref())?;
    }
    engine.cancel(id)
}

/// Decodes plainly with the model's own calls, one row a step, without the loop. `seen` is called after the prompt and
/// after each further token. Returns the tokens; the last one is not in the state.
///
/// # Errors
/// The model's, or those of `seen`.
pub fn decode<T: TargetModel>(
    target: &T,
    state: &mut T::State,
    prompt: &[u32],
    tokens: usize,
    sampling: Sampling,
    seen: &mut dyn FnMut(&T::State) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut occurred = Occurred::default();
    prompt.iter().for_each(|id| occurred.insert(*id));
    let (_, mut last) = target.prefill_last(state, prompt)?;
    let rule = RowRule {
        sampling,
        position: prompt.len(),
        occurred: &occurred,
    };
    let first = only(last.choose(&rule)?.rows.first().map(|c| c.id))?;
    drop(last);
    target.settle(state)?;
    seen(state)?;
    let mut chosen = vec![first];
    go_on(
        target,
        state,
        &mut chosen,
        tokens,
        sampling,
        &mut occurred,
        seen,
    )?;
    Ok(chosen)
}

/// Goes on decoding plainly from a state whose anchor is the last of `chosen`, until there are `tokens` of them.
///
/// # Errors
/// The model's, or those of `seen`.
pub fn go_on<T: TargetModel>(
    target: &T,
    state: &mut T::State,
    chosen: &mut Vec<u32>,
    tokens: usize,
    sampling: Sampling,
    occurred: &mut Occurred,
    seen: &mut dyn FnMut(&T::State) -> Result<()>,
) -> Result<()> {
    while chosen.len() < tokens {
        let anchor = only(chosen.last().copied())?;
        occurred.insert(anchor);
        let position = target.position(state) + 1;
        let mut pending = target.verify(state, anchor, None)?;
        let rule = RowRule {
            sampling,
            position,
            occurred,
        };
        let id = only(pending.choose(&rule)?.rows.first().map(|c| c.id))?;
        pending.commit(std::num::NonZeroUsize::MIN)?;
        target.settle(state)?;
        seen(state)?;
        chosen.push(id);
    }
    Ok(())
}

fn only(id: Option<u32>) -> Result<u32> {
    id.ok_or_else(|| Error::request("decode", "a row chooses a token"))
}

/// The state of a target after a prompt, without choosing a token.
///
/// # Errors
/// The model's.
pub fn prefilled<B: Backend>(target: &Target<B>, prompt: &[u32]) -> Result<TargetState<B>> {
    let mut state = target.new_state()?;
    target.prefill(&mut state, prompt)?;
    Ok(state)
}
