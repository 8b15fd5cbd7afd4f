//! A target whose logits are a function of the tokens before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::rc::Rc;

use crate::spec::{Pending, Rivals, RowRule, Rows, StateMemory, TargetModel, Verdict};
use crate::testing::fakes::scramble;
use crate::{Error, Result};

/// Logits of the token after a prefix.
#[derive(Debug, Clone, PartialEq)]
pub enum Logits {
    /// Between −2 and 2, from a seed and the last two tokens.
    Table {
        /// Of the table.
        seed: u64,
        /// Tokens.
        vocab: usize,
    },
    /// One token far above all others: the entry at the prefix's length. Token 0 past the end.
    Text {
        /// By position, prompt included.
        tokens: Vec<u32>,
        /// Tokens.
        vocab: usize,
    },
}

impl Logits {
    /// How many tokens there are.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Table { vocab, .. } | Self::Text { vocab, .. } => *vocab,
        }
    }

    /// One number per token.
    pub fn after(&self, prefix: &[u32]) -> Vec<f32> {
        match self {
            Self::Table { seed, vocab } => {
                let back = |n: usize| prefix.iter().rev().nth(n).map_or(99, |t| u64::from(*t));
                (0..*vocab as u64)
                    .map(|id| {
                        let mixed = scramble(*seed, back(0) * 10_000 + back(1) * 100 + id);
                        #[expect(clippy::cast_precision_loss, reason = "24 bits")]
                        let unit = (mixed >> 40) as f32 / (1u32 << 24) as f32;
                        4.0 * unit - 2.0
                    })
                    .collect()
            }
            Self::Text { tokens, vocab } => {
                let next = tokens.get(prefix.len()).copied().unwrap_or(0);
                (0u32..)
                    .take(*vocab)
                    .map(|id| if id == next { 30.0 } else { 0.0 })
                    .collect()
            }
        }
    }
}

/// The token with the largest logit, the lowest of equals.
pub(super) fn best(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    best.0
}

/// Where a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A chunk of the prompt.
    Prefill,
    /// The pass over a block.
    Verify,
    /// The read-back: the logits are not finite.
    Choose,
    /// Keeping rows.
    Commit,
    /// Evaluating what is queued.
    Settle,
}

/// An error at a stage, after so many calls of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub stage: Stage,
    /// How often it goes well before.
    pub after: usize,
}

/// A target without tensors.
#[derive(Debug)]
pub struct ScriptedTarget {
    logits: Logits,
    fault: Cell<Option<Fault>>,
    readbacks: Cell<u64>,
    next: Cell<usize>,
    caches: Rc<RefCell<Caches>>,
}

#[derive(Debug, Default)]
struct Caches {
    /// Committed tokens by sequence, also of those that are gone.
    committed: BTreeMap<usize, Vec<u32>>,
    alive: usize,
}

/// What a sequence has committed.
#[derive(Debug)]
pub struct ScriptedState {
    number: usize,
    tokens: Vec<u32>,
    pending: Vec<u32>,
    caches: Rc<RefCell<Caches>>,
}

impl ScriptedState {
    /// Committed tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn commit(&mut self, rows: usize) -> Vec<TapRow> {
        let first = self.tokens.len();
        self.tokens.extend(self.pending.drain(..).take(rows));
        self.caches
            .borrow_mut()
            .committed
            .insert(self.number, self.tokens.clone());
        (first..self.tokens.len())
            .map(|position| TapRow {
                position,
                token: self.tokens[position],
            })
            .collect()
    }
}

impl Drop for ScriptedState {
    fn drop(&mut self) {
        self.caches.borrow_mut().alive -= 1;
    }
}

/// What the draft is told of a committed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapRow {
    /// Where it stands.
    pub position: usize,
    /// Its id.
    pub token: u32,
}

/// A block's proposals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// One per slot.
    pub ids: Vec<u32>,
    /// Whether they mean anything.
    pub finite: bool,
    /// Slot 1 under both rules, if the request samples.
    pub rivals: Option<Rivals>,
}

/// Rows of a block or of the prompt's end.
#[derive(Debug)]
pub struct Block<'s> {
    target: &'s ScriptedTarget,
    state: &'s mut ScriptedState,
    draft: Option<Proposal>,
}

impl ScriptedTarget {
    /// A target with these logits.
    pub fn new(logits: Logits) -> Self {
        Self {
            logits,
            fault: Cell::default(),
            readbacks: Cell::default(),
            next: Cell::default(),
            caches: Rc::default(),
        }
    }

    /// How many tokens there are.
    pub fn vocab(&self) -> usize {
        self.logits.vocab()
    }

    /// Fails once, from now on.
    pub fn fail(&self, fault: Fault) {
        self.fault.set(Some(fault));
    }

    /// Fails no more.
    pub fn heal(&self) {
        self.fault.set(None);
    }

    /// Blocks and prompt ends that were read.
    pub fn readbacks(&self) -> u64 {
        self.readbacks.get()
    }

    /// Sequences that hold memory.
    pub fn alive(&self) -> usize {
        self.caches.borrow().alive
    }

    /// What the newest sequence's cache held last, also after the request is over.
    pub fn last_cache(&self) -> Vec<u32> {
        let caches = self.caches.borrow();
        caches
            .committed
            .last_key_value()
            .map(|(_, tokens)| tokens.clone())
            .unwrap_or_default()
    }

    fn strike(&self, stage: Stage) -> bool {
        match self.fault.get() {
            Some(fault) if fault.stage == stage => {
                self.fault.set(
                    fault
                        .after
                        .checked_sub(1)
                        .map(|after| Fault { stage, after }),
                );
                fault.after == 0
            }
            _ => false,
        }
    }

    fn check(&self, stage: Stage, op: &'static str) -> Result<()> {
        if self.strike(stage) {
            return Err(Error::backend(op, "a scripted fault"));
        }
        Ok(())
    }
}

impl TargetModel for ScriptedTarget {
    type State = ScriptedState;
    type Draft = Proposal;
    type Context = Vec<TapRow>;
    type LastRow<'s> = Block<'s>;
    type Pending<'s> = Block<'s>;

    fn new_state(&self) -> Result<ScriptedState> {
        let number = self.next.get();
        self.next.set(number + 1);
        let mut caches = self.caches.borrow_mut();
        caches.alive += 1;
        caches.committed.insert(number, Vec::new());
        Ok(ScriptedState {
            number,
            tokens: Vec::new(),
            pending: Vec::new(),
            caches: Rc::clone(&self.caches),
        })
    }

    fn position(&self, state: &ScriptedState) -> usize {
        state.tokens.len()
    }

    fn prefill(&self, state: &mut ScriptedState, ids: &[u32]) -> Result<Vec<TapRow>> {
        self.check(Stage::Prefill, "prefill")?;
        state.pending = ids.to_vec();
        Ok(state.commit(ids.len()))
    }

    fn prefill_last<'s>(
        &'s self,
        state: &'s mut ScriptedState,
        ids: &[u32],
    ) -> Result<(Vec<TapRow>, Block<'s>)> {
        let rows = self.prefill(state, ids)?;
        let block = Block {
            target: self,
            state,
            draft: None,
        };
        Ok((rows, block))
    }

    fn verify<'s>(
        &'s self,
        state: &'s mut ScriptedState,
        anchor: u32,
        draft: Option<&Proposal>,
    ) -> Result<Block<'s>> {
        self.check(Stage::Verify, "verify")?;
        state.pending = std::iter::once(anchor)
            .chain(draft.into_iter().flat_map(|d| d.ids.iter().copied()))
            .collect();
        Ok(Block {
            target: self,
            state,
            draft: draft.cloned(),
        })
    }

    fn settle(&self, _state: &mut ScriptedState) -> Result<()> {
        self.check(Stage::Settle, "settle")
    }

    fn memory(&self, state: &ScriptedState) -> StateMemory {
        StateMemory {
            kv_bytes: state.tokens.len(),
            recurrent_bytes: 0,
        }
    }
}

impl Block<'_> {
    /// Row i sees what is committed and the first i + 1 rows of the block; a prompt's end has no block.
    fn row(&self, row: usize) -> Vec<f32> {
        let seen = (row + 1).min(self.state.pending.len());
        let prefix = [&self.state.tokens[..], &self.state.pending[..seen]].concat();
        self.target.logits.after(&prefix)
    }
}

impl Rows for Block<'_> {
    fn choose(&mut self, rule: &RowRule<'_>) -> Result<Verdict> {
        self.target.readbacks.set(self.target.readbacks.get() + 1);
        let draft = self.draft.clone().unwrap_or(Proposal {
            ids: Vec::new(),
            finite: true,
            rivals: None,
        });
        let bad = self.target.strike(Stage::Choose);
        let agreeable: &[u32] = if draft.finite { &draft.ids } else { &[] };
        let mut rows = Vec::new();
        for row in 0..=agreeable.len() {
            let mut logits = self.row(row);
            if bad {
                logits[0] = f32::NAN;
            }
            let choice =
                rule.draw(row, &logits, &agreeable[..row])
                    .map_err(|_| Error::NonFinite {
                        what: "target logits".into(),
                        position: rule.position + row - 1,
                        layer: None,
                        dtype: "f32".into(),
                    })?;
            rows.push(choice);
            if agreeable.get(row) != Some(&choice.id) {
                break;
            }
        }
        Ok(Verdict {
            drafted: draft.ids,
            rows,
            draft_finite: draft.finite,
            rivals: draft.rivals,
        })
    }

    fn logits(&mut self) -> Result<Vec<Vec<f32>>> {
        Ok((0..self.state.pending.len().max(1))
            .map(|row| self.row(row))
            .collect())
    }
}

impl Pending for Block<'_> {
    type Context = Vec<TapRow>;

    fn commit(self, keep: NonZeroUsize) -> Result<Vec<TapRow>> {
        self.target.check(Stage::Commit, "commit")?;
        if keep.get() > self.state.pending.len() {
            return Err(Error::shape(
                "rows to keep",
                format!("1 to {}", self.state.pending.len()),
                keep,
            ));
        }
        Ok(self.state.commit(keep.get()))
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        self.state.pending.clear();
    }
}
