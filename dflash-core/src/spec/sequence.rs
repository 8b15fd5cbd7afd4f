//! One request on its way: states, anchor, output and what was seen.

use std::time::{Duration, Instant};

use super::drafter::{Coupling, DraftModel, ProposalRule};
use super::policy::Policy;
use super::report::{FinishReason, Report, Round, RoundTimes};
use super::sampler::{Occurred, Sampling};
use super::target::TargetModel;
use super::text::Output;

/// A running request.
#[derive(Debug)]
pub(super) struct Sequence<T: TargetModel, D: DraftModel<T>> {
    pub(super) target: T::State,
    /// `None` while no draft listens.
    pub(super) draft: Option<D::State>,
    pub(super) prompt: Vec<u32>,
    /// Tokens that the target has seen.
    pub(super) position: usize,
    pub(super) anchor: u32,
    pub(super) sampling: Sampling,
    /// How far a row's logits may move with the rows beside it; 0 at the exact level.
    pub(super) row_rounding: f32,
    pub(super) occurred: Occurred,
    pub(super) output: Output,
    pub(super) policy: Policy,
    pub(super) finish: Option<FinishReason>,
    pub(super) stats: Stats,
}

/// What is counted over a request.
#[derive(Debug)]
pub(super) struct Stats {
    pub(super) draft_requested: bool,
    pub(super) started: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) drafted: usize,
    pub(super) accepted: usize,
    pub(super) lengths: Vec<usize>,
    pub(super) rollbacks: usize,
    pub(super) near_ties: usize,
    pub(super) times: RoundTimes,
    pub(super) notes: Vec<String>,
}

impl Stats {
    pub(super) fn new(draft_requested: bool, notes: Vec<String>) -> Self {
        Self {
            draft_requested,
            started: Instant::now(),
            first_token: None,
            drafted: 0,
            accepted: 0,
            lengths: Vec::new(),
            rollbacks: 0,
            near_ties: 0,
            times: RoundTimes::default(),
            notes,
        }
    }

    pub(super) fn count(&mut self, round: &Round) {
        self.drafted += round.drafted;
        self.accepted += round.accepted;
        self.lengths.push(round.produced);
        self.rollbacks += usize::from(round.produced < round.width);
        self.near_ties += round.near_ties;
        self.times += round.times;
        self.notes.extend(round.notes.iter().cloned());
    }
}

impl<T: TargetModel, D: DraftModel<T>> Sequence<T, D> {
    /// Tokens still wanted.
    pub(super) fn wanted(&self) -> usize {
        self.output.wanted()
    }

    /// Asks the draft for a block of `rows` rows. A draft that fails costs its proposals, never the request.
    pub(super) fn propose(
        &mut self,
        draft: &D,
        rows: usize,
        round: &mut Round,
    ) -> Option<T::Draft> {
        let state = self.draft.as_mut()?;
        let coupling = (!self.sampling.is_greedy()).then(|| Coupling {
            seed: self.sampling.seed,
            temperature: self.sampling.temperature,
            propose: self.policy.couples(),
        });
        let rule = ProposalRule {
            rows,
            position: self.position,
            coupling,
        };
        match draft.propose(state, self.anchor, &rule) {
            Ok(proposal) => Some(proposal),
            Err(error) => {
                self.give_up_draft(format!("the draft failed: {error}"), round);
                None
            }
        }
    }

    /// Hands committed rows to the draft, if one is still listening.
    pub(super) fn absorb(
        &mut self,
        draft: Option<&D>,
        rows: T::Context,
        horizon: usize,
        round: &mut Round,
    ) {
        if !self.policy.is_drafting() {
            self.draft = None;
        }
        let (Some(draft), Some(state)) = (draft, self.draft.as_mut()) else {
            return;
        };
        if let Err(error) = draft.absorb(state, rows, horizon) {
            self.give_up_draft(format!("the draft failed: {error}"), round);
        } else {
            debug_assert_eq!(
                draft.absorbed(state),
                self.position,
                "the draft's context holds one row per committed token"
            );
        }
    }

    fn give_up_draft(&mut self, reason: String, round: &mut Round) {
        round.notes.push(reason.clone());
        self.policy.stop_drafting(reason);
        self.draft = None;
    }

    /// Moves past committed tokens: the last one is the new anchor.
    pub(super) fn advance(&mut self, tokens: &[u32]) {
        self.position += tokens.len();
        for id in tokens {
            self.occurred.insert(*id);
        }
        if let Some(last) = tokens.last() {
            self.anchor = *last;
        }
    }

    /// The report of a request that ended for `reason`.
    pub(super) fn report(self, reason: FinishReason, target: &T, draft: Option<&D>) -> Report {
        let now = Instant::now();
        let drafting = self.policy.is_drafting() && draft.is_some();
        Report {
            text: self.output.text,
            tokens: self.output.tokens,
            finish_reason: reason,
            prompt_tokens: self.prompt.len(),
            rounds: self.stats.lengths.len(),
            drafted: self.stats.drafted,
            accepted: self.stats.accepted,
            acceptance_lengths: self.stats.lengths,
            time_to_first_token: self.stats.first_token.map(|t| t - self.stats.started),
            decode_time: self.stats.first_token.map_or(Duration::ZERO, |t| now - t),
            times: self.stats.times,
            draft_requested: self.stats.draft_requested,
            draft_active: drafting,
            draft_inactive_reason: self.policy.inactive_reason().map(str::to_owned),
            block_size: self.policy.block(),
            sampling: self.sampling,
            memory: target.memory(&self.target),
            draft_memory: draft.zip(self.draft.as_ref()).map(|(d, s)| d.memory(s)),
            rollbacks: self.stats.rollbacks,
            near_ties: self.stats.near_ties,
            non_finite_drafts: self.policy.non_finite,
            notes: self.stats.notes,
        }
    }
}
