//! A draft sees what it was trained to see: taps, context rows, windows, positions, causality, scales.
//!
//! The text cannot show an error here, since the target corrects every draft. So these checks look at context rows, draft
//! logits and proposals. Each writes tiny checkpoints to a scratch folder.

mod context;
mod mask;
mod numbers;
mod taps;

pub use context::{check_context_memory, check_context_rows, check_prompt_chunks, check_shift};
pub use mask::check_mask;
pub use numbers::{check_file_formats, check_large_residual, check_scales};
pub use taps::check_taps;

use std::path::Path;

use serde_json::{Value, json};

use super::fakes::scramble;
use super::lossless::load_pair;
use super::tiny::{Tiny, draft_config, target_config};
use crate::Result;
use crate::backend::Backend;
use crate::config::{Architecture, DraftKind};
use crate::draft::{Draft, DraftState};
use crate::models::{Context, Target};
use crate::spec::{DraftModel, ProposalRule, TargetModel};

/// A target and a draft on a prompt's context rows.
struct Setting<B: Backend> {
    target: Target<B>,
    draft: Draft<B>,
    prompt: Vec<u32>,
}

const BLOCK: usize = 8;

fn prompt(rows: usize) -> Vec<u32> {
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
