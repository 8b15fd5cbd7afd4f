//! What an engine says: events while it runs, a report when a request ends.

use std::time::Duration;

use super::drafter::DraftMemory;
use super::sampler::Sampling;
use super::target::StateMemory;

/// Something that happened in a step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// Part of the prompt has been processed.
    Prefill {
        /// Tokens so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Tokens were committed.
    Tokens {
        /// Their ids.
        ids: Vec<u32>,
        /// The text that became complete; maybe empty.
        text: String,
    },
    /// A round ended.
    Round(Round),
}

/// One round, or one plain step.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// Rows that the target verified, anchor included.
    pub width: usize,
    /// Tokens that the draft proposed.
    pub drafted: usize,
    /// Of those, the ones that were kept.
    pub accepted: usize,
    /// Tokens that the round added.
    pub produced: usize,
    /// Of the produced tokens, those whose choice was closer than the device's row rounding.
    pub near_ties: usize,
    /// Committed tokens before the round.
    pub context: usize,
    /// Where the time went.
    pub times: RoundTimes,
    /// What was unusual.
    pub notes: Vec<String>,
}

/// Time of a round, by stage. `host` is all that is not a call of a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundTimes {
    /// Proposing, absorbing context included.
    pub draft: Duration,
    /// Verifying and choosing, the read-back included.
    pub verify: Duration,
    /// Committing: rollback and replay.
    pub commit: Duration,
    /// The rest.
    pub host: Duration,
}

impl std::ops::AddAssign for RoundTimes {
    fn add_assign(&mut self, other: Self) {
        self.draft += other.draft;
        self.verify += other.verify;
        self.commit += other.commit;
        self.host += other.host;
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-text id.
    Stop,
    /// `max_tokens`, or the context limit.
    Length,
    /// A stop string.
    StopString,
    /// The caller.
    Cancelled,
}

impl FinishReason {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::StopString => "stop_string",
            Self::Cancelled => "cancelled",
        }
    }
}

/// All that is known of a finished request.
#[derive(Debug, Clone)]
pub struct Report {
    /// The whole text.
    pub text: String,
    /// Every committed token, the end token and those cut by a stop string included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Target passes after the prompt.
    pub rounds: usize,
    /// Tokens that the draft proposed.
    pub drafted: usize,
    /// Of those, the ones that were kept.
    pub accepted: usize,
    /// Tokens per round; the first token, from the prompt, is not counted.
    pub acceptance_lengths: Vec<usize>,
    /// From `start` to the first token, if there was one.
    pub time_to_first_token: Option<Duration>,
    /// From the first token to the end.
    pub decode_time: Duration,
    /// Sum over the rounds.
    pub times: RoundTimes,
    /// Whether the request wanted a draft and one was asked for at load time.
    pub draft_requested: bool,
    /// Whether it was still drafting at the end.
    pub draft_active: bool,
    /// Why not.
    pub draft_inactive_reason: Option<String>,
    /// Rows per block that were asked for.
    pub block_size: usize,
    /// The options that tokens were drawn with.
    pub sampling: Sampling,
    /// The target's caches at the end.
    pub memory: StateMemory,
    /// The draft's context at the end, if it drafted.
    pub draft_memory: Option<DraftMemory>,
    /// Rounds after which rows were taken back.
    pub rollbacks: usize,
    /// Choices closer than the device's row rounding; 0 at the exact level.
    pub near_ties: usize,
    /// Blocks whose draft was not finite.
    pub non_finite_drafts: usize,
    /// Fallbacks, clamps and choices made for a reason.
    pub notes: Vec<String>,
}

impl Report {
    /// Generated tokens.
    pub fn generation_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Prompt tokens per second until the first token.
    pub fn prompt_tps(&self) -> Option<f64> {
        self.time_to_first_token
            .and_then(|t| rate(self.prompt_tokens, t))
    }

    /// Generated tokens per second of decoding; `None` for fewer than two tokens.
    pub fn generation_tps(&self) -> Option<f64> {
        if self.rounds == 0 {
            None
        } else {
            rate(self.generation_tokens(), self.decode_time)
        }
    }

    /// Tokens per round; `None` before the first round.
    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.rounds > 0)
            .then(|| self.acceptance_lengths.iter().sum::<usize>() as f64 / self.rounds as f64)
    }
}

fn rate(count: usize, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}
