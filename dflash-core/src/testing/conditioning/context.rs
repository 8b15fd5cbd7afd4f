//! Which context rows a draft keeps, and that nothing else decides its proposals.

use std::path::Path;

use super::{BLOCK, Setting, apart, sliding};
use crate::Result;
use crate::backend::Backend;
use crate::config::DraftKind;
use crate::spec::{DraftModel, TargetModel};

/// Context rows per layer: all, or the window's, with and without a bound on every layer. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_context_rows<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        for (types, bound) in [
            (&["sliding", "full", "sliding"][..], None),
            (&["full", "full"], None),
            (&["sliding", "sliding"], None),
            (&["full", "sliding"], Some(5)),
            (&["sliding", "full"], Some(40)),
        ] {
            for n in [1, 8, 9, 10, 30] {
                let setting = Setting::with(
                    backend,
                    scratch,
                    kind,
                    n,
                    bound,
                    |c| sliding(c, types, 10),
                    |_| {},
                )?;
                let expected: Vec<usize> = types
                    .iter()
                    .map(|t| if *t == "full" { usize::MAX } else { 10 })
                    .map(|own: usize| n.min(own.min(bound.unwrap_or(usize::MAX)) - 1))
                    .collect();
                for chunk in [1, 4, n] {
                    let context = setting.absorbed(chunk, |_| n)?;
                    if context.rows() != expected || context.absorbed() != n {
                        found.push(format!(
                            "{kind:?} {types:?} bound {bound:?}, {n} rows in chunks of {chunk}: {:?}, expected {expected:?}",
                            context.rows()
                        ));
                    }
                }
            }
        }
    }
    Ok(found)
}

/// Proposals and logits after a prompt do not depend on its chunks, nor on whether a sliding draft skipped rows that would
/// leave its window. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_prompt_chunks<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        for types in [
            &["sliding", "sliding"][..],
            &["sliding", "full"],
            &["full", "full"],
        ] {
            let setting = Setting::new(backend, scratch, kind, 33, |c| sliding(c, types, 9))?;
            // No row is skipped when the horizon is what is there.
            let mut whole = setting.absorbed(1, |done| done)?;
            let (logits, ids) = (
                setting.logits(&whole, BLOCK)?,
                setting.proposals(&mut whole)?,
            );
            for chunk in [1, 4, 7, 32, 33] {
                for skipping in [false, true] {
                    let mut context =
                        setting.absorbed(chunk, |done| if skipping { 33 } else { done })?;
                    let same = apart(&setting.logits(&context, BLOCK)?, &logits) < 1e-5
                        && setting.proposals(&mut context)? == ids
                        && context.rows() == whole.rows();
                    if !same {
                        found.push(format!(
                            "{kind:?} {types:?}, chunk {chunk}, skipping: {skipping}"
                        ));
                    }
                }
            }
            // A control: one row less is another context.
            let less = Setting::new(backend, scratch, kind, 32, |c| sliding(c, types, 9))?;
            let context = less.absorbed(32, |done| done)?;
            if apart(&less.logits(&context, BLOCK)?, &logits) < 1e-4 {
                found.push(format!("{kind:?} {types:?}: a missing row changes nothing"));
            }
        }
    }
    Ok(found)
}

/// The same context ten thousand positions later gives the same proposals, logits to 1e-3: only distances count. Past the
/// draft's `max_position_embeddings` too. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_shift<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        for types in [
            &["sliding", "sliding"][..],
            &["sliding", "full"],
            &["full", "full"],
        ] {
            let setting = Setting::new(backend, scratch, kind, 20, |c| sliding(c, types, 9))?;
            let mut here = setting.draft.new_state()?;
            setting.draft.absorb(&mut here, setting.rows()?, 20)?;
            for shift in [1, 10_000] {
                let mut there = setting.draft.new_state()?;
                there.skip(shift);
                setting
                    .draft
                    .absorb(&mut there, setting.rows()?, shift + 20)?;
                let (a, b) = (
                    setting.logits(&here, BLOCK)?,
                    setting.logits(&there, BLOCK)?,
                );
                let same = setting.proposals(&mut here)? == setting.proposals(&mut there)?;
                if !same || apart(&a, &b) > 1e-3 {
                    found.push(format!(
                        "{kind:?} {types:?} shifted by {shift}: logits {:.1e} apart, proposals the same: {same}",
                        apart(&a, &b)
                    ));
                }
            }
        }
    }
    Ok(found)
}

/// Bytes of a draft's context once its window has wrapped: the same from the tenth window to the thirtieth. Returns what
/// differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_context_memory<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    const WINDOW: usize = 9;
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        let s = Setting::new(backend, scratch, kind, 30 * WINDOW, |c| {
            sliding(c, &["sliding", "sliding"], WINDOW);
        })?;
        let (mut state, mut context) = (s.target.new_state()?, s.draft.new_state()?);
        let mut done = 0;
        let mut bytes = std::collections::BTreeSet::new();
        let mut left = &s.prompt[..];
        while !left.is_empty() {
            // Rounds of one to eight tokens.
            let kept = (1 + done % 8).min(left.len());
            let (ids, rest) = left.split_at(kept);
            left = rest;
            done += kept;
            s.draft
                .absorb(&mut context, s.target.prefill(&mut state, ids)?, done)?;
            if done >= 10 * WINDOW {
                bytes.insert(s.draft.memory(&context).bytes);
                if s.draft.memory(&context).rows != WINDOW - 1 {
                    found.push(format!("{kind:?}: {} rows", s.draft.memory(&context).rows));
                }
            }
        }
        if bytes.len() != 1 {
            found.push(format!("{kind:?}: the context takes {bytes:?} bytes"));
        }
    }
    Ok(found)
}
