//! A draft sees what it was trained to see: taps, context rows, windows, positions, causality, scales.
//!
//! The text cannot show an error here, since the target corrects every draft. So these checks look at context rows, draft
//! logits and proposals. Each writes tiny checkpoints to a scratch folder.

use std::path::Path;

use serde_json::{Value, json};

use super::fakes::scramble;
use super::golden;
use super::lossless::load_pair;
use super::tiny::{Tiny, draft_config, target_config};
use crate::backend::Backend;
use crate::config::{Architecture, DraftKind};
use crate::draft::{Draft, DraftState};
use crate::models::{Context, Target};
use crate::spec::{DraftModel, ProposalRule, TargetModel};
use crate::{DType, Result};

/// A target and a draft on a prompt's context rows.
struct Setting<B: Backend> {
    target: Target<B>,
    draft: Draft<B>,
    prompt: Vec<u32>,
}

const BLOCK: usize = 8;

fn prompt(rows: usize) -> Vec<u32> {
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of 59")]
    let ids = (0..rows as u64).map(|i| (scramble(3, i) % 59) as u32);
    ids.collect()
}

impl<B: Backend> Setting<B> {
    fn new(
        backend: &B,
        scratch: &Path,
        kind: DraftKind,
        rows: usize,
        tweak: impl FnOnce(&mut Value),
    ) -> Result<Self> {
        Self::with(backend, scratch, kind, rows, None, tweak, |_| {})
    }

    fn with(
        backend: &B,
        scratch: &Path,
        kind: DraftKind,
        rows: usize,
        window: Option<usize>,
        tweak: impl FnOnce(&mut Value),
        change: impl FnOnce(&mut Tiny),
    ) -> Result<Self> {
        let config = target_config(Architecture::Qwen3, |_| {});
        let target = scratch.join("target");
        Tiny::target(config.clone(), 1)?.write(&target)?;
        let mut draft = Tiny::draft(draft_config(kind, &config, tweak), 2)?;
        change(&mut draft);
        let folder = scratch.join("draft");
        draft.write(&folder)?;
        let (target, draft) = load_pair(backend, &target, &folder, window)?;
        Ok(Self {
            target,
            draft,
            prompt: prompt(rows),
        })
    }

    fn backend(&self) -> &B {
        self.target.backend()
    }

    /// The taps of the whole prompt.
    fn rows(&self) -> Result<Context<B>> {
        self.target
            .prefill(&mut self.target.new_state()?, &self.prompt)
    }

    /// A context that absorbed the prompt in chunks, each with the horizon that `horizon` makes of the rows so far.
    fn absorbed(&self, chunk: usize, horizon: impl Fn(usize) -> usize) -> Result<DraftState<B>> {
        let (mut state, mut context) = (self.target.new_state()?, self.draft.new_state()?);
        let mut done = 0;
        for ids in self.prompt.chunks(chunk) {
            let rows = self.target.prefill(&mut state, ids)?;
            done += ids.len();
            self.draft.absorb(&mut context, rows, horizon(done))?;
        }
        Ok(context)
    }

    fn logits(&self, context: &DraftState<B>, rows: usize) -> Result<Vec<f32>> {
        self.backend()
            .read(&self.draft.trace(context, 5, rows)?.logits)
    }

    fn proposals(&self, context: &mut DraftState<B>) -> Result<Vec<u32>> {
        let rule = ProposalRule {
            rows: BLOCK,
            position: context.absorbed(),
            coupling: None,
        };
        self.backend()
            .read_ids(&self.draft.propose(context, 5, &rule)?.ids)
    }
}

fn sliding(config: &mut Value, types: &[&str], window: usize) {
    let names: Vec<String> = types.iter().map(|t| format!("{t}_attention")).collect();
    config["layer_types"] = json!(names);
    config["num_hidden_layers"] = json!(names.len());
    config["use_sliding_window"] = json!(true);
    config["sliding_window"] = json!(window);
}

/// The largest difference as a fraction of the largest magnitude.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0f32, |m, v| m.max(v.abs()));
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(
            0f32,
            |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) },
        )
        / largest
}

/// A target whose layer L adds L + 1 to channel 0 of a zero stream: the row captured for id L holds 1 + … + (L + 1). The
/// last layer too, before the final norm; ids in any order and twice. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_taps<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    const DEPTH: usize = 5;
    let config = target_config(Architecture::Llama, |c| {
        c["mlp_bias"] = json!(true);
        c["num_hidden_layers"] = json!(DEPTH);
    });
    let mut tiny = Tiny::target(config, 1)?;
    tiny.change_all("model.", |values| values.fill(0.0));
    for layer in 0..DEPTH {
        #[expect(clippy::cast_precision_loss, reason = "a layer's number")]
        tiny.change(
            &format!("model.layers.{layer}.mlp.down_proj.bias"),
            |bias| {
                bias[0] = (layer + 1) as f32;
            },
        )?;
    }
    let folder = scratch.join("counting");
    tiny.write(&folder)?;
    let mut target = golden::load_target(backend, &folder)?;
    let mut found = Vec::new();
    for taps in [&[0][..], &[DEPTH - 1], &[3, 1, 2], &[2, 2, 4, 0]] {
        target.set_taps(taps)?;
        let mut state = target.new_state()?;
        let mut contexts = vec![target.prefill(&mut state, &[1, 2, 3])?];
        let pending = target.verify(&mut state, 4, None)?;
        contexts.push(crate::spec::Pending::commit(
            pending,
            std::num::NonZeroUsize::MIN,
        )?);
        for context in contexts {
            for (id, tensor) in taps.iter().zip(&context.taps) {
                let rows = backend.read(tensor)?;
                let width = rows.len() / context.rows;
                #[expect(clippy::cast_precision_loss, reason = "a small sum")]
                let sum = ((id + 1) * (id + 2) / 2) as f32;
                let fits = rows
                    .iter()
                    .enumerate()
                    .all(|(i, v)| *v == if i % width == 0 { sum } else { 0.0 });
                if !fits || context.taps.len() != taps.len() {
                    found.push(format!(
                        "tap {id} of {taps:?}: {:?}, expected {sum}",
                        &rows[..2]
                    ));
                }
            }
        }
    }
    if target.set_taps(&[DEPTH]).is_ok() {
        found.push("a tap past the last layer was taken".into());
    }
    Ok(found)
}

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

/// Which cells of a layer's mask are visible, told by what a change of a key changes: `is_causal` true, false and absent,
/// on full and sliding layers, at block 4 and window 6. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_mask<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    const ROWS: usize = 4;
    const WINDOW: usize = 6;
    const CONTEXT: usize = 10;
    let mut found = Vec::new();
    for (kind, causal) in [Some(true), Some(false), None]
        .into_iter()
        .flat_map(|c| [(DraftKind::DFlash1, c), (DraftKind::DFlash2, c)])
    {
        for slides in [false, true] {
            let types = if slides { ["sliding"] } else { ["full"] };
            let tweak = |c: &mut Value| {
                sliding(c, &types, WINDOW);
                c["dflash_config"]["block_size"] = json!(ROWS);
                match causal {
                    Some(value) => c["is_causal"] = json!(value),
                    None => {
                        if let Value::Object(c) = c {
                            c.remove("is_causal");
                        }
                    }
                }
            };
            // A convolution lets a row see the one before it, whatever the mask says.
            let quiet = |t: &mut Tiny| {
                t.change_all("_conv.kernel_projection", |v| v.fill(0.0));
                t.change_all("_conv.base_kernel", |v| {
                    // Two sides of two taps: only the row itself passes.
                    let width = v.len() / 4;
                    for (i, x) in v.iter_mut().enumerate() {
                        *x = f32::from(u8::from((i / width).is_multiple_of(2)));
                    }
                });
            };
            let s = Setting::with(backend, scratch, kind, CONTEXT, None, tweak, quiet)?;
            let rule_is_causal = causal.unwrap_or(slides);
            let place = format!("{kind:?}, is_causal {causal:?}, sliding: {slides}");
            let hidden = |context: &DraftState<B>, rows: usize| -> Result<Vec<Vec<f32>>> {
                let all = backend.read(&s.draft.trace(context, 5, rows)?.hidden)?;
                Ok(all.chunks(all.len() / rows).map(<[f32]>::to_vec).collect())
            };
            let differs = |a: &[f32], b: &[f32]| apart(a, b) > 1e-6;
            let base_rows = s.rows()?;
            let mut base = s.draft.new_state()?;
            s.draft.absorb(&mut base, clone(&base_rows), CONTEXT)?;
            let plain = hidden(&base, ROWS)?;
            for key in 0..CONTEXT {
                let mut changed = s.draft.new_state()?;
                let rows = with_row_changed(backend, &base_rows, key)?;
                s.draft.absorb(&mut changed, rows, CONTEXT)?;
                for (row, (own, plain)) in hidden(&changed, ROWS)?.iter().zip(&plain).enumerate() {
                    let distance = CONTEXT + row - key;
                    let visible = !slides || distance < WINDOW;
                    if differs(own, plain) != visible {
                        found.push(format!("{place}: row {row} and context row {key}"));
                    }
                }
            }
            // A block cut before key j: rows before j change iff they saw it.
            for key in 1..ROWS {
                let (with, without) = (hidden(&base, key + 1)?, hidden(&base, key)?);
                for row in 0..key {
                    if differs(&with[row], &without[row]) == rule_is_causal {
                        found.push(format!("{place}: row {row} and block row {key}"));
                    }
                }
            }
            // Every row sees the anchor.
            let other = backend.read(&s.draft.trace(&base, 6, ROWS)?.hidden)?;
            for (row, plain) in plain.iter().enumerate() {
                if !differs(&other[row * plain.len()..][..plain.len()], plain) {
                    found.push(format!("{place}: row {row} does not see the anchor"));
                }
            }
        }
    }
    Ok(found)
}

fn clone<B: Backend>(rows: &Context<B>) -> Context<B> {
    Context {
        taps: rows.taps.clone(),
        rows: rows.rows,
    }
}

fn with_row_changed<B: Backend>(b: &B, rows: &Context<B>, row: usize) -> Result<Context<B>> {
    let taps = rows
        .taps
        .iter()
        .map(|t| {
            let mut numbers = b.read(t)?;
            let width = numbers.len() / rows.rows;
            for (i, n) in numbers[row * width..][..width].iter_mut().enumerate() {
                *n = if i % 2 == 0 { *n + 1.0 } else { -*n };
            }
            b.upload(&numbers, &[1, rows.rows, width], b.dtype())
        })
        .collect::<Result<_>>()?;
    Ok(Context {
        taps,
        rows: rows.rows,
    })
}

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
