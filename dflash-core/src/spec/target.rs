//! What the round loop needs of a target model.

use std::fmt::Debug;
use std::num::NonZeroUsize;

use super::sampler::{Choice, RowRule};
use crate::Result;

/// The large model whose output must not change.
///
/// One `State` belongs to one sequence. A lazy backend may leave work queued in it; only
/// [`settle`](Self::settle), [`Rows::choose`] and [`Rows::logits`] evaluate. An engine lives on one
/// thread, so nothing here is `Send`.
pub trait TargetModel {
    /// Caches and position of one sequence.
    type State: Debug;
    /// A block's proposals, maybe still on the device; what a draft model hands to [`verify`](Self::verify).
    type Draft: Clone + Debug;
    /// Tap rows of committed tokens, maybe unevaluated; what a draft model absorbs.
    type Context: Debug;
    /// The last row of a prompt.
    type LastRow<'s>: Rows
    where
        Self: 's;
    /// A verified block that is not committed yet.
    type Pending<'s>: Pending<Context = Self::Context>
    where
        Self: 's;

    /// An empty sequence.
    ///
    /// # Errors
    /// If the backend cannot allocate it.
    fn new_state(&self) -> Result<Self::State>;

    /// How many tokens the state has committed: the position of the next one.
    fn position(&self, state: &Self::State) -> usize;

    /// Runs a chunk of the prompt, commits it and returns its tap rows.
    ///
    /// # Errors
    /// Ids outside the vocabulary, or the backend's. The state is as before the call.
    fn prefill(&self, state: &mut Self::State, ids: &[u32]) -> Result<Self::Context>;

    /// Runs the last chunk of the prompt: the same, and the head on the last row.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    fn prefill_last<'s>(
        &'s self,
        state: &'s mut Self::State,
        ids: &[u32],
    ) -> Result<(Self::Context, Self::LastRow<'s>)>;

    /// Runs `[anchor, drafts…]` on the caches without committing it. Without a draft: a plain step of one row.
    ///
    /// # Errors
    /// The backend's. The state is as before the call.
    fn verify<'s>(
        &'s self,
        state: &'s mut Self::State,
        anchor: u32,
        draft: Option<&Self::Draft>,
    ) -> Result<Self::Pending<'s>>;

    /// Evaluates what is queued, so that a lazy backend's errors surface here.
    ///
    /// # Errors
    /// The backend's; the state is then unusable and says so when used again.
    fn settle(&self, state: &mut Self::State) -> Result<()>;

    /// Runs ids from an empty state and reads back what every layer puts out, and the logits of the rows from `logits_from` on.
    /// For diagnosis: all of it is brought to the host.
    ///
    /// # Errors
    /// Ids outside the vocabulary, a first row past the last, or the backend's; [`Error::Unsupported`](crate::Error::Unsupported) by default.
    fn probe(&self, _ids: &[u32], _logits_from: usize) -> Result<Probe> {
        Err(crate::Error::unsupported("layer outputs of this target"))
    }

    /// Bytes held by the sequence's caches, by kind.
    fn memory(&self, state: &Self::State) -> StateMemory;
}

/// What a target computes for some tokens, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// Per layer its output, the residual stream `[rows, hidden]` before any later norm.
    pub layers: Vec<Vec<f32>>,
    /// Raw logits of the rows that were asked for, `[rows, vocab]`.
    pub logits: Vec<Vec<f32>>,
}

/// Bytes of a sequence's caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateMemory {
    /// Keys and values of attention layers.
    pub kv_bytes: usize,
    /// States of recurrent layers.
    pub recurrent_bytes: usize,
}

/// Rows of logits from which tokens are chosen.
pub trait Rows {
    /// Chooses the rows' tokens, up to and including the first row that disagrees with the block's draft: the round's only read-back.
    ///
    /// # Errors
    /// [`Error::NonFinite`](crate::Error::NonFinite) if a row that had to be read holds a number that is not finite.
    fn choose(&mut self, rule: &RowRule<'_>) -> Result<Verdict>;

    /// All raw logits, one vector per row. An extra read-back, for log-probabilities and constraints.
    ///
    /// # Errors
    /// The backend's.
    fn logits(&mut self) -> Result<Vec<Vec<f32>>>;
}

/// A verified block whose rows may still be thrown away.
///
/// Dropped without [`commit`](Self::commit), it restores the state before the block: lower lengths,
/// the old recurrent state and window. That cannot fail.
#[must_use = "a block that is not committed is rolled back"]
pub trait Pending: Rows {
    /// Tap rows of the committed tokens.
    type Context: Debug;

    /// Keeps the first `keep` rows in every cache and returns their tap rows.
    ///
    /// # Errors
    /// The backend's, from replaying a recurrent layer; the state is then as before the block.
    fn commit(self, keep: NonZeroUsize) -> Result<Self::Context>;
}

/// What a block's read-back says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// The proposals, as the draft made them on the device.
    pub drafted: Vec<u32>,
    /// The target's choices, up to and including the first that disagrees with the draft.
    pub rows: Vec<Choice>,
    /// False if the draft computed a number that is not finite; its proposals mean nothing then.
    pub draft_finite: bool,
    /// Slot 1 as each kind of proposal would have it, when the draft was asked for both.
    pub rivals: Option<Rivals>,
}

/// The first slot under both proposal rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rivals {
    /// The draft's most probable token.
    pub argmax: u32,
    /// The draft's token under the request's own noise.
    pub coupled: u32,
}
