//! Drafts of known quality for a target on any backend.
//!
//! A fake knows the plain continuation of one prompt, so a test can say which slots are right. The text must
//! never depend on it.

use std::cell::Cell;

use crate::backend::{Backend, Drafted};
use crate::models::{Context, Target};
use crate::spec::{DraftMemory, DraftModel, ProposalRule};
use crate::{DType, Error, Result};

/// How a fake proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Every slot is the plain continuation.
    Oracle,
    /// No slot is.
    Liar,
    /// The first so many slots are, the next one is not.
    Half(usize),
    /// Another number of right slots in every block, from a seed.
    Scattered(u64),
    /// Any ids, from a seed.
    Random(u64),
    /// The backend's own proposal from logits that are NaN in one slot (counted from 0), or in all with `None`.
    NotANumber(Option<usize>),
    /// The plain continuation, but marked as not finite: it must not be taken.
    Unflagged,
    /// An oracle that fails to propose after so many blocks.
    FailsToPropose(usize),
    /// An oracle that fails to absorb after so many times.
    FailsToAbsorb(usize),
}

/// A fake draft for one prompt.
#[derive(Debug, Clone)]
pub struct FakeDraft<B: Backend> {
    backend: B,
    /// Prompt and plain continuation, by position.
    plain: Vec<u32>,
    vocab: usize,
    block: usize,
    behaviour: Cell<Behaviour>,
}

/// What a fake has seen.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FakeState {
    /// Rows that were absorbed.
    pub rows: usize,
    /// Calls of `absorb`.
    pub absorbs: usize,
    /// Blocks that were proposed.
    pub blocks: usize,
}

impl<B: Backend> FakeDraft<B> {
    /// A fake that knows `prompt` and what plain decoding made of it.
    pub fn new(
        backend: &B,
        behaviour: Behaviour,
        prompt: &[u32],
        continuation: &[u32],
        vocab: usize,
        block: usize,
    ) -> Self {
        Self {
            backend: backend.clone(),
            plain: [prompt, continuation].concat(),
            vocab,
            block,
            behaviour: Cell::new(behaviour),
        }
    }

    /// Behaves differently from the next request on.
    pub fn set(&self, behaviour: Behaviour) {
        self.behaviour.set(behaviour);
    }

    /// The ids of a block: right in the first `right` slots, wrong in the next.
    fn ids(&self, position: usize, slots: usize, right: usize) -> Vec<u32> {
        (0..slots)
            .map(|slot| {
                let id = self.plain.get(position + 1 + slot).copied().unwrap_or(0);
                if slot < right { id } else { self.wrong(id) }
            })
            .collect()
    }

    /// Another id of the vocabulary.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "vocabularies are far below 2^32"
    )]
    pub fn wrong(&self, id: u32) -> u32 {
        (id + 1) % self.vocab as u32
    }

    /// What a draft hands over: ids and whether they mean anything.
    ///
    /// # Errors
    /// The backend's.
    pub fn drafted(&self, ids: &[u32], finite: bool) -> Result<Drafted<B>> {
        Ok(Drafted {
            rows: ids.len(),
            ids: self.backend.upload_ids(ids)?,
            finite: self
                .backend
                .upload(&[f32::from(u8::from(finite))], &[1], DType::F32)?,
            rivals: None,
        })
    }
}

impl<B: Backend> DraftModel<Target<B>> for FakeDraft<B> {
    type State = FakeState;

    fn block_size(&self) -> usize {
        self.block
    }

    fn new_state(&self) -> Result<FakeState> {
        Ok(FakeState::default())
    }

    fn absorbed(&self, state: &FakeState) -> usize {
        state.rows
    }

    fn absorb(&self, state: &mut FakeState, rows: Context<B>, horizon: usize) -> Result<()> {
        if self.behaviour.get() == Behaviour::FailsToAbsorb(state.absorbs) {
            return Err(Error::backend("absorb", "a fake that fails"));
        }
        state.absorbs += 1;
        state.rows += rows.rows;
        if state.rows > horizon {
            return Err(Error::request(
                "absorb",
                format!("{} rows, but {horizon} committed tokens", state.rows),
            ));
        }
        Ok(())
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a remainder below the vocabulary"
    )]
    fn propose(
        &self,
        state: &mut FakeState,
        anchor: u32,
        rule: &ProposalRule,
    ) -> Result<Drafted<B>> {
        let slots = rule.rows - 1;
        let block = state.blocks;
        state.blocks += 1;
        if rule.position != state.rows {
            return Err(Error::request(
                "propose",
                format!("at {} with {} rows of context", rule.position, state.rows),
            ));
        }
        if self
            .plain
            .get(rule.position)
            .is_some_and(|id| *id != anchor)
        {
            return Err(Error::request(
                "propose",
                format!("anchor {anchor} is not plain decoding's"),
            ));
        }
        let right = match self.behaviour.get() {
            Behaviour::Oracle | Behaviour::FailsToAbsorb(_) => slots,
            Behaviour::FailsToPropose(after) if block < after => slots,
            Behaviour::FailsToPropose(_) => {
                return Err(Error::backend("propose", "a fake that fails"));
            }
            Behaviour::Liar => 0,
            Behaviour::Half(right) => right,
            Behaviour::Scattered(seed) => {
                (scramble(seed, block as u64) % rule.rows as u64) as usize
            }
            Behaviour::Unflagged => {
                return self.drafted(&self.ids(rule.position, slots, slots), false);
            }
            Behaviour::Random(seed) => {
                let first = (rule.position * self.block) as u64;
                let ids: Vec<u32> = (first..first + slots as u64)
                    .map(|n| (scramble(seed, n) % self.vocab as u64) as u32)
                    .collect();
                return self.drafted(&ids, true);
            }
            Behaviour::NotANumber(bad) => {
                let mut logits = vec![0.0; slots * self.vocab];
                for (i, id) in self.ids(rule.position, slots, slots).iter().enumerate() {
                    let row = &mut logits[i * self.vocab..][..self.vocab];
                    row[*id as usize] = 1.0;
                    if bad.is_none_or(|b| b.min(slots - 1) == i) {
                        row.fill(f32::NAN);
                    }
                }
                let logits =
                    self.backend
                        .upload(&logits, &[1, slots, self.vocab], self.backend.dtype())?;
                return self.backend.propose(&logits, rule);
            }
        };
        self.drafted(&self.ids(rule.position, slots, right), true)
    }

    fn memory(&self, state: &FakeState) -> DraftMemory {
        DraftMemory {
            rows: state.rows,
            bytes: 0,
        }
    }
}

/// A well-mixed number of two (splitmix64).
pub fn scramble(seed: u64, n: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0xA076_1D64_78BD_642F)
        .wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
