//! The round loop: one loop for every target, draft and backend.
//!
//! # Glossary
//! * *target*: the large model whose output must not change. *Draft*: the small model that proposes.
//! * *anchor*: the last committed token, not yet seen by the target: row 0 of a block.
//! * *block*: anchor and drafted tokens; a block of B rows has B − 1 *slots*.
//! * *taps*: outputs of chosen target layers. *Context*: one row of taps per committed token.
//! * *round*: draft → verify → accept → commit → absorb. *Produced*: tokens that a round adds.
//!
//! This module knows models by what they do ([`TargetModel`], [`DraftModel`]), never by a tensor.

mod accept;
mod drafter;
mod engine;
mod filter;
mod policy;
mod report;
mod request;
mod round;
pub mod sampler;
mod sequence;
mod step;
mod target;
mod text;

pub use accept::{Acceptance, accept, clip_at_end};
pub use drafter::{Coupling, DraftMemory, DraftModel, ProposalRule};
pub use engine::{Engine, Generation, Output, RequestId, Step, stream_generate};
pub use report::{Event, FinishReason, Report, Round, RoundTimes};
pub use request::{Bounds, Request};
pub use sampler::{Choice, Noise, NotFinite, Occurred, RowRule, Sampling};
pub use step::{EngineParts, SpecEngine};
pub use target::{Pending, Probe, Rivals, Rows, StateMemory, TargetModel, Verdict};
pub use text::{TextDecoder, TextStream};
