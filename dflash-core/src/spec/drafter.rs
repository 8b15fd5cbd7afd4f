//! What the round loop needs of a draft model.

use std::fmt::Debug;

use super::target::TargetModel;
use crate::Result;

/// The small block-diffusion model that proposes a block in one pass.
///
/// It sees committed context only, so it never needs a rollback. Absorbing may queue rows that the
/// next proposal computes.
pub trait DraftModel<T: TargetModel + ?Sized> {
    /// Context keys and values of one sequence.
    type State: Debug;

    /// The trained block size, anchor included.
    fn block_size(&self) -> usize;

    /// An empty context.
    ///
    /// # Errors
    /// If the backend cannot allocate it.
    fn new_state(&self) -> Result<Self::State>;

    /// Committed tokens whose rows the state has absorbed.
    fn absorbed(&self, state: &Self::State) -> usize;

    /// Takes the tap rows of newly committed tokens, in order.
    ///
    /// `horizon` is a number of committed tokens that will be reached before the next proposal. A
    /// draft whose layers all slide skips rows that will have left its window by then.
    ///
    /// # Errors
    /// The backend's.
    fn absorb(&self, state: &mut Self::State, rows: T::Context, horizon: usize) -> Result<()>;

    /// Proposes the tokens after `anchor`, one per slot.
    ///
    /// # Errors
    /// The backend's.
    fn propose(
        &self,
        state: &mut Self::State,
        anchor: u32,
        rule: &ProposalRule,
    ) -> Result<T::Draft>;

    /// What the sequence's context holds.
    fn memory(&self, state: &Self::State) -> DraftMemory;
}

/// How a block is proposed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProposalRule {
    /// Rows of the block, anchor included; at least 2, at most the trained size. Slots = rows − 1.
    pub rows: usize,
    /// The anchor's position; slot i proposes for `position + i`.
    pub position: usize,
    /// The request's noise, when it samples.
    pub coupling: Option<Coupling>,
}

/// The noise that the target will draw with, for proposals that follow it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coupling {
    /// The request's seed.
    pub seed: u64,
    /// The request's temperature, above 0.
    pub temperature: f32,
    /// True to propose the argmax of `score / T + gumbel`, false to propose the plain argmax and only report the rival.
    pub propose: bool,
}

/// What a draft's context holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftMemory {
    /// Context rows that a layer can still see, the largest number over the layers.
    pub rows: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}
