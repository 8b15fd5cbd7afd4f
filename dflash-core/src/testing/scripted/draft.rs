//! A draft that is as good as a test wants.

use std::cell::Cell;

use super::target::{Logits, Proposal, ScriptedTarget, TapRow, best};
use crate::spec::{Coupling, DraftMemory, DraftModel, Noise, ProposalRule, Rivals};
use crate::testing::fakes::scramble;
use crate::{Error, Result};

/// What it proposes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Skill {
    /// The target's likeliest tokens, right in as many slots as the entry for this block says; entries repeat.
    Pattern(Vec<usize>),
    /// The target's logits and an error of up to this much, from a seed.
    Noisy {
        /// Largest error of a logit.
        error: f32,
        /// Of the error.
        seed: u64,
    },
    /// As a pattern that is always right, but blocks whose number is listed are not finite.
    Overflows(Vec<usize>),
}

/// Which proposals it makes when the request samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the loop asks for.
    AsAsked,
    /// The likeliest token.
    Argmax,
    /// The token that the request's noise makes the best.
    Coupled,
}

/// A draft without tensors. It is told a target's logits, and uses them on the context that it absorbed.
#[derive(Debug)]
pub struct ScriptedDraft {
    logits: Logits,
    skill: Skill,
    kind: Kind,
    block: usize,
    fails: Cell<Option<(Fails, usize)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Propose,
    Absorb,
}

/// The tokens whose rows were absorbed.
#[derive(Debug, Default)]
pub struct ScriptedDraftState {
    tokens: Vec<u32>,
    blocks: usize,
}

impl ScriptedDraftState {
    /// Absorbed tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl ScriptedDraft {
    /// A draft of blocks of `block` rows for a target with these logits.
    pub fn new(logits: &Logits, skill: Skill, block: usize) -> Self {
        Self {
            logits: logits.clone(),
            skill,
            kind: Kind::AsAsked,
            block,
            fails: Cell::default(),
        }
    }

    /// The same with proposals of one kind.
    #[must_use]
    pub fn proposing(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Fails once to propose, after so many blocks.
    pub fn fail_to_propose(&self, after: usize) {
        self.fails.set(Some((Fails::Propose, after)));
    }

    /// Fails once to absorb, after so many times.
    pub fn fail_to_absorb(&self, after: usize) {
        self.fails.set(Some((Fails::Absorb, after)));
    }

    fn check(&self, at: Fails, op: &'static str) -> Result<()> {
        match self.fails.get() {
            Some((fails, 0)) if fails == at => {
                self.fails.set(None);
                Err(Error::backend(op, "a scripted fault"))
            }
            Some((fails, after)) if fails == at => {
                self.fails.set(Some((fails, after - 1)));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The draft's own idea of the logits after a prefix.
    fn idea(&self, prefix: &[u32]) -> Vec<f32> {
        let mut logits = self.logits.after(prefix);
        if let Skill::Noisy { error, seed } = self.skill {
            for (id, logit) in (0u64..).zip(&mut logits) {
                let mixed = scramble(seed, prefix.len() as u64 * 1000 + id);
                #[expect(clippy::cast_precision_loss, reason = "24 bits")]
                let unit = (mixed >> 40) as f32 / (1u32 << 24) as f32;
                *logit += error * (2.0 * unit - 1.0);
            }
        }
        logits
    }
}

impl DraftModel<ScriptedTarget> for ScriptedDraft {
    type State = ScriptedDraftState;

    fn block_size(&self) -> usize {
        self.block
    }

    fn new_state(&self) -> Result<ScriptedDraftState> {
        Ok(ScriptedDraftState::default())
    }

    fn absorbed(&self, state: &ScriptedDraftState) -> usize {
        state.tokens.len()
    }

    fn absorb(
        &self,
        state: &mut ScriptedDraftState,
        rows: Vec<TapRow>,
        horizon: usize,
    ) -> Result<()> {
        self.check(Fails::Absorb, "absorb")?;
        for row in rows {
            if row.position != state.tokens.len() || row.position >= horizon {
                return Err(Error::shape(
                    "absorbed row",
                    format!("position {} below {horizon}", state.tokens.len()),
                    row.position,
                ));
            }
            state.tokens.push(row.token);
        }
        Ok(())
    }

    fn propose(
        &self,
        state: &mut ScriptedDraftState,
        anchor: u32,
        rule: &ProposalRule,
    ) -> Result<Proposal> {
        self.check(Fails::Propose, "propose")?;
        let block = state.blocks;
        state.blocks += 1;
        if rule.position != state.tokens.len() {
            return Err(Error::shape(
                "the anchor's position",
                state.tokens.len(),
                rule.position,
            ));
        }
        let mut prefix = [&state.tokens[..], &[anchor]].concat();
        let (mut ids, mut rivals) = (Vec::new(), None);
        for slot in 0..rule.rows - 1 {
            let logits = self.idea(&prefix);
            let argmax = best(&logits);
            let coupled = |c: Coupling| {
                let noise = Noise {
                    seed: c.seed,
                    position: rule.position + slot + 1,
                };
                noise.draw_all(&logits, c.temperature).id
            };
            let mut id = match (rule.coupling, self.kind) {
                (Some(c), Kind::Coupled) => coupled(c),
                (Some(c), Kind::AsAsked) if c.propose => coupled(c),
                _ => argmax,
            };
            if slot == 0 {
                rivals = rule.coupling.map(|c| Rivals {
                    argmax,
                    coupled: coupled(c),
                });
            }
            if let Skill::Pattern(right) = &self.skill
                && slot >= right[block % right.len()]
            {
                id = other(id, self.logits.vocab());
            }
            prefix.push(id);
            ids.push(id);
        }
        let finite = !matches!(&self.skill, Skill::Overflows(bad) if bad.contains(&block));
        Ok(Proposal {
            ids,
            finite,
            rivals,
        })
    }

    fn memory(&self, state: &ScriptedDraftState) -> DraftMemory {
        DraftMemory {
            rows: state.tokens.len(),
            bytes: state.tokens.len(),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a handful of tokens")]
fn other(id: u32, vocab: usize) -> u32 {
    (id + 1) % vocab as u32
}
