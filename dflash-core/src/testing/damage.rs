//! Numbers that are not finite: in a target's weight they end the request with a name, in a rejected row they do nothing.

use std::num::NonZeroUsize;
use std::path::Path;

use super::drive::{self, decode, finish, go_on};
use super::fakes::{Behaviour, FakeDraft};
use super::golden;
use super::inspect::{InspectKv, Snapshot};
use super::states::PlainStates;
use super::tiny::{Tiny, target_config};
use crate::backend::Backend;
use crate::config::Architecture;
use crate::spec::{
    Engine, Occurred, Pending, Report, Request, RowRule, Rows, Sampling, Step, TargetModel,
};
use crate::{Error, Result};

/// A NaN in one weight of a middle layer: the prompt's end and a plain request are refused with position, layer, weight
/// and row, and the engine goes on refusing rather than returning a token. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or loaded.
pub fn check_named<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for architecture in Architecture::ALL {
        for value in [f32::NAN, f32::INFINITY] {
            // Every expert is used, so that none is innocent.
            let config = target_config(architecture, |c| {
                if c.get("num_experts").is_some() {
                    c["num_experts_per_tok"] = serde_json::json!(4);
                }
            });
            let hidden = 24;
            let mut tiny = Tiny::target(config, 1)?;
            let names = tiny.names();
            let damaged = names
                .iter()
                .find(|n| n.contains("layers.1.") && n.contains("down_proj"))
                .ok_or_else(|| Error::request("damage", "a down projection"))?
                .clone();
            tiny.change(&damaged, |numbers| {
                let width = numbers.len() / hidden;
                numbers[3 * width + 2] = value;
            })?;
            let folder = scratch.join("damaged");
            tiny.write(&folder)?;
            let fake = FakeDraft::new(backend, Behaviour::Oracle, &[1, 2, 3], &[], 61, 8);
            let mut engine = drive::engine(backend, &folder, Some(fake))?;
            for _ in 0..2 {
                match finish(&mut engine, &golden::request(&[1, 2, 3], 5)) {
                    Ok(Report { tokens, .. }) => {
                        found.push(format!(
                            "{architecture:?}: {tokens:?} from logits with {value}"
                        ));
                    }
                    Err(Error::NonFinite {
                        what,
                        position,
                        layer,
                        ..
                    }) => {
                        let named = what.contains(&damaged) && what.contains("row 3");
                        if !named || layer != Some(1) || position > 2 {
                            found.push(format!(
                                "{architecture:?}: {what} at {position}, layer {layer:?}; expected {damaged}"
                            ));
                        }
                    }
                    Err(other) => found.push(format!("{architecture:?}: {other}")),
                }
            }
        }
    }
    Ok(found)
}

/// Damage that only one token meets: the requests that meet it fail at its position, those before and after are as ever.
/// Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or loaded, or a sound request fails.
pub fn check_isolated<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for architecture in Architecture::ALL {
        let (folder, bad) = poisonous(architecture, scratch)?;
        let prompt = [1, 2, 3, 4];
        let target = golden::load_target(backend, &folder)?;
        let plain = decode(
            &target,
            &mut target.new_state()?,
            &prompt,
            20,
            Sampling::default(),
            &mut |_| Ok(()),
        )?;
        if plain.contains(&bad) {
            found.push(format!(
                "{architecture:?}: the token that is damaged was generated"
            ));
            continue;
        }
        let fake = FakeDraft::new(backend, Behaviour::Half(3), &prompt, &plain, 61, 8);
        let mut engine = drive::engine(backend, &folder, Some(fake))?;
        let id = engine.start(golden::request(&prompt, 20))?;
        engine.step(id, &mut |_| {})?;
        for (met, at, chunk) in [
            ([1, 2, bad], 2, 1),
            ([1, 2, bad], 2, 2),
            ([1, 2, bad], 2, 512),
            ([1, bad, 2], 1, 512),
        ] {
            let request = Request {
                prefill_chunk: chunk,
                ..golden::request(&met, 20)
            };
            match finish(&mut engine, &request) {
                Err(Error::NonFinite { position, .. }) if position == at => {}
                other => found.push(format!(
                    "{architecture:?}, chunk {chunk}: {:?}",
                    other.map(|r| r.tokens)
                )),
            }
        }
        loop {
            if let Step::Finished(report) = engine.step(id, &mut |_| {})? {
                if report.tokens != plain || report.accepted == 0 {
                    found.push(format!("{architecture:?}: a request beside it changed"));
                }
                break;
            }
        }
    }
    Ok(found)
}

/// Drafts whose embedding is NaN: rows before them are untouched, and after the commit nothing of them is left. Returns what
/// differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_rejected_rows<B: InspectKv>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for architecture in Architecture::ALL {
        let (folder, bad) = poisonous(architecture, scratch)?;
        let prompt = [1, 2, 3, 4];
        let target = golden::load_target(backend, &folder)?;
        let plain = PlainStates::decode(&target, &prompt, 14)?;
        let fake = FakeDraft::new(backend, Behaviour::Oracle, &prompt, &plain.tokens, 61, 8);
        for right in 0..7 {
            let mut state = drive::prefilled(&target, &prompt)?;
            let before = Snapshot::of(backend, &state)?;
            let mut drafts = plain.tokens[1..8].to_vec();
            drafts[right..].fill(bad);
            let drafted = fake.drafted(&drafts, true)?;
            drop(target.verify(&mut state, plain.tokens[0], Some(&drafted))?);
            found.extend(Snapshot::of(backend, &state)?.differences(&before, 0.0));
            let occurred = Occurred::default();
            let rule = RowRule {
                sampling: Sampling::default(),
                position: prompt.len() + 1,
                occurred: &occurred,
            };
            let mut pending = target.verify(&mut state, plain.tokens[0], Some(&drafted))?;
            let chosen: Vec<u32> = pending.choose(&rule)?.rows.iter().map(|c| c.id).collect();
            pending.commit(NonZeroUsize::new(right + 1).unwrap_or(NonZeroUsize::MIN))?;
            if chosen != plain.tokens[1..right + 2] {
                found.push(format!(
                    "{architecture:?}: {right} right drafts, chosen {chosen:?}"
                ));
            }
            let mut tokens = plain.tokens[..right + 2].to_vec();
            go_on(
                &target,
                &mut state,
                &mut tokens,
                right + 5,
                Sampling::default(),
                &mut Occurred::default(),
                &mut |state| {
                    found.extend(plain.differences(backend, state)?);
                    Ok(())
                },
            )?;
            if tokens != plain.tokens[..right + 5] {
                found.push(format!(
                    "{architecture:?}: the text after {right} right drafts"
                ));
            }
        }
    }
    Ok(found)
}

/// A target with one token whose embedding is NaN and which it never generates.
fn poisonous(architecture: Architecture, scratch: &Path) -> Result<(std::path::PathBuf, u32)> {
    const BAD: u32 = 60;
    let mut tiny = Tiny::target(target_config(architecture, |_| {}), 4)?;
    let row = BAD as usize;
    tiny.change("model.embed_tokens.weight", |numbers| {
        let width = numbers.len() / 61;
        numbers[row * width..].fill(f32::NAN);
    })?;
    tiny.change("lm_head.weight", |numbers| {
        let width = numbers.len() / 61;
        numbers[row * width..].fill(0.0);
    })?;
    let folder = scratch.join("poisonous");
    tiny.write(&folder)?;
    Ok((folder, BAD))
}
