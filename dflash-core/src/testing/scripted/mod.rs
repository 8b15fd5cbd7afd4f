//! A whole target and draft written by hand: no tensor, no backend.
//!
//! They show that the round loop needs nothing but its two traits, and give tests what no real model gives: a text
//! that ends where the test wants, errors at any stage, and a view of what the caches hold.

mod draft;
mod letters;
mod target;

pub use draft::{Kind, ScriptedDraft, ScriptedDraftState, Skill};
pub use letters::Letters;
pub use target::{Block, Fault, Logits, Proposal, ScriptedState, ScriptedTarget, Stage, TapRow};

use crate::DType;
use crate::backend::Exactness;
use crate::load::LoadReport;
use crate::spec::{EngineParts, SpecEngine, TextDecoder};

/// An engine of a scripted target and draft.
pub type ScriptedEngine = SpecEngine<ScriptedTarget, ScriptedDraft>;

/// Puts an engine together. `context` is the longest sequence.
pub fn engine(
    target: ScriptedTarget,
    draft: Option<ScriptedDraft>,
    decoder: Option<Letters>,
    context: usize,
) -> ScriptedEngine {
    let report = LoadReport {
        backend: "scripted",
        backend_reason: "made by hand".into(),
        device: "none",
        dtype: DType::F32,
        exactness: Exactness::Exact,
        row_rounding: None,
        threads: 1,
        target: "scripted".into(),
        architecture: "scripted".into(),
        vocab_size: target.vocab(),
        context,
        end_ids: Vec::new(),
        nest: String::new(),
        caches: Vec::new(),
        weight_bytes: 0,
        draft: None,
        operations: Vec::new(),
        notes: Vec::new(),
    };
    SpecEngine::new(EngineParts {
        target,
        draft,
        decoder: decoder.map(|d| Box::new(d) as Box<dyn TextDecoder>),
        report,
        readbacks: ScriptedTarget::readbacks,
    })
}
