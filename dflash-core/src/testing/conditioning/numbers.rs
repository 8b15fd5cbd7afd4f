//! Formats, sizes and scales of a draft's numbers.

use std::path::Path;

use serde_json::{Value, json};

use super::{BLOCK, Setting, apart};
use crate::backend::Backend;
use crate::config::{Architecture, DraftKind};
use crate::spec::{DraftModel, ProposalRule};
use crate::testing::lossless::load_pair;
use crate::testing::tiny::{Tiny, target_config};
use crate::{DType, Result};

/// Files in float32, bfloat16 and float16 that hold the same numbers give the same logits. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_file_formats<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        let mut first = None;
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let change = |t: &mut Tiny| {
                t.round_to(DType::Bf16);
                t.round_to(DType::F16);
                *t = t.clone().stored_as(dtype);
            };
            let s = Setting::with(backend, scratch, kind, 20, None, |_| {}, change)?;
            let mut context = s.absorbed(20, |done| done)?;
            let now = (s.logits(&context, BLOCK)?, s.proposals(&mut context)?);
            let (logits, ids) = first.get_or_insert_with(|| now.clone());
            if apart(&now.0, logits) > 1e-5 || now.1 != *ids {
                found.push(format!("{kind:?} stored as {dtype}"));
            }
        }
    }
    Ok(found)
}

/// A draft whose residual stream passes 10⁵, which float16 cannot hold: logits and proposals are finite. Returns what
/// differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_large_residual<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        for by_weight in [false, true] {
            let tweak = |c: &mut Value| {
                if !by_weight {
                    c["dflash_config"]["input_embedding_scale"] = json!(1e6);
                }
            };
            let change = |t: &mut Tiny| {
                if by_weight {
                    t.change_all("layers.0.mlp.down_proj", |v| {
                        v.iter_mut().for_each(|x| *x *= 1e7)
                    });
                }
            };
            let s = Setting::with(backend, scratch, kind, 20, None, tweak, change)?;
            let context = &mut s.absorbed(20, |done| done)?;
            let finite = s.logits(context, BLOCK)?.iter().all(|l| l.is_finite());
            let rule = ProposalRule {
                rows: BLOCK,
                position: 20,
                coupling: None,
            };
            let flag = backend.read(&s.draft.propose(context, 5, &rule)?.finite)?;
            if !finite || flag != [1.0] {
                found.push(format!(
                    "{kind:?}, by weight: {by_weight}: {finite} {flag:?}"
                ));
            }
        }
    }
    Ok(found)
}

/// Multiplier, soft cap and embedding scale do what they say. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_scales<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        let logits = |key: &str, value: Value| -> Result<Vec<f32>> {
            let s = Setting::new(backend, scratch, kind, 20, |c| {
                c["dflash_config"][key] = value
            })?;
            s.logits(&s.absorbed(20, |done| done)?, BLOCK)
        };
        let plain = logits("output_multiplier", json!(1.0))?;
        let mut compare = |what: &str, own: &[f32], expected: Vec<f32>| {
            if apart(own, &expected) > 1e-5 {
                found.push(format!(
                    "{kind:?}: {what}, {:.1e} apart",
                    apart(own, &expected)
                ));
            }
        };
        let scaled = logits("output_multiplier", json!(0.25))?;
        compare(
            "multiplier",
            &scaled,
            plain.iter().map(|l| l * 0.25).collect(),
        );
        let capped = logits("final_logit_softcapping", json!(2.0))?;
        compare(
            "soft cap",
            &capped,
            plain.iter().map(|l| 2.0 * (l / 2.0).tanh()).collect(),
        );
        let off = logits("final_logit_softcapping", json!(0.0))?;
        compare("a soft cap of 0", &off, plain.clone());

        // Twice the embedding is the embedding of a target with twice the numbers.
        let doubled = logits("input_embedding_scale", json!(2.0))?;
        let s = Setting::new(backend, scratch, kind, 20, |_| {})?;
        let rows = s.rows()?;
        let mut other = Tiny::target(target_config(Architecture::Qwen3, |_| {}), 1)?;
        other.change("model.embed_tokens.weight", |v| {
            v.iter_mut().for_each(|x| *x *= 2.0)
        })?;
        let folder = scratch.join("doubled");
        other.write(&folder)?;
        let (_, draft) = load_pair(backend, &folder, &scratch.join("draft"), None)?;
        let mut context = draft.new_state()?;
        draft.absorb(&mut context, rows, 20)?;
        let expected = backend.read(&draft.trace(&context, 5, BLOCK)?.logits)?;
        compare("embedding scale", &doubled, expected);
        if apart(&doubled, &plain) < 1e-4 {
            found.push(format!("{kind:?}: the embedding scale changes nothing"));
        }
    }
    Ok(found)
}
