//! The target model as the round loop sees it.

use std::num::NonZeroUsize;

use super::decoder::Decoder;
use super::state::TargetState;
use crate::backend::{Backend, Drafted};
use crate::checkpoint::Checkpoint;
use crate::config::TargetConfig;
use crate::nn::Builder;
use crate::spec::{self, Probe, RowRule, Rows, StateMemory, TargetModel, Verdict};
use crate::{Error, Result};

/// A target on a backend.
#[derive(Debug)]
pub struct Target<B: Backend> {
    decoder: Decoder<B>,
    taps: Vec<usize>,
    nest: String,
    /// Read again only to name the weight behind a result that is not finite.
    pub(super) checkpoint: Checkpoint,
}

/// Tap rows of committed tokens: one tensor `[1, rows, hidden]` per tap.
#[derive(Debug)]
pub struct Context<B: Backend> {
    /// In the order of the draft's `target_layer_ids`.
    pub taps: Vec<B::Tensor>,
    /// Rows in each.
    pub rows: usize,
}

/// A block's rows, not committed.
#[derive(Debug)]
pub struct Pending<'s, B: Backend> {
    target: &'s Target<B>,
    state: &'s mut TargetState<B>,
    ids: B::Ids,
    draft: Option<Drafted<B>>,
    logits: B::Tensor,
    taps: Vec<B::Tensor>,
    rows: usize,
}

/// The last row of a prompt. Its chunk is prepared and committed when this is dropped, so that rows which turn out not to
/// be finite can be traced from the state before them.
#[derive(Debug)]
pub struct LastRow<'s, B: Backend> {
    target: &'s Target<B>,
    state: &'s mut TargetState<B>,
    /// The chunk; `None` once it has been found not to be finite.
    chunk: Option<Vec<u32>>,
    logits: B::Tensor,
}

impl<B: Backend> Target<B> {
    /// Claims a checkpoint's tensors; notes name what was skipped by rule.
    ///
    /// # Errors
    /// Tensors that are missing, of another shape or not claimed, by name.
    pub fn load(
        backend: &B,
        config: &TargetConfig,
        checkpoint: &Checkpoint,
    ) -> Result<(Self, Vec<String>)> {
        let mut claims = checkpoint.claims_for(config)?;
        let decoder = Decoder::load(&mut Builder::new(backend, &mut claims), config)?;
        let nest = claims.nest().to_owned();
        let notes = claims.finish()?;
        Ok((
            Self {
                decoder,
                taps: Vec::new(),
                nest,
                checkpoint: checkpoint.clone(),
            },
            notes,
        ))
    }

    /// Captures the outputs of these layers from now on, in this order (0-based, before any later norm).
    ///
    /// # Errors
    /// [`Error::Request`] for a layer that does not exist.
    pub fn set_taps(&mut self, layers: &[usize]) -> Result<()> {
        if let Some(id) = layers.iter().find(|id| **id >= self.decoder.depth()) {
            return Err(Error::request(
                "taps",
                format!(
                    "layer {id} does not exist, the target has {} layers",
                    self.decoder.depth()
                ),
            ));
        }
        self.taps = layers.to_vec();
        Ok(())
    }

    /// Runs ids from an empty state: the output of every layer, and the logits of all rows.
    ///
    /// # Errors
    /// Ids outside the vocabulary, or the backend's.
    pub fn trace(&self, ids: &[u32]) -> Result<(Vec<B::Tensor>, B::Tensor)> {
        let (layers, h) = self.trace_layers(ids)?;
        Ok((layers, self.decoder.logits(&h)?))
    }

    fn trace_layers(&self, ids: &[u32]) -> Result<(Vec<B::Tensor>, B::Tensor)> {
        self.check_ids(ids)?;
        let mut state = self.new_state()?;
        let mut layers = Vec::new();
        let h = self.decoder.forward(
            state.caches_mut(),
            0,
            &self.backend().upload_ids(ids)?,
            ids.len(),
            &mut |_, h| {
                layers.push(h.clone());
                Ok(())
            },
        )?;
        Ok((layers, h))
    }

    /// The tensor prefix where the embedding was found.
    pub fn nest(&self) -> &str {
        &self.nest
    }

    /// The layers and the head.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// The backend that it runs on.
    pub fn backend(&self) -> &B {
        self.decoder.backend()
    }

    pub(super) fn run(
        &self,
        state: &mut TargetState<B>,
        ids: &B::Ids,
        rows: usize,
    ) -> Result<(B::Tensor, Vec<B::Tensor>)> {
        state.check()?;
        let position = state.position();
        let mut captured: Vec<Option<B::Tensor>> = vec![None; self.taps.len()];
        let h = self
            .decoder
            .forward(state.caches_mut(), position, ids, rows, &mut |layer, h| {
                for (tap, slot) in self.taps.iter().zip(&mut captured) {
                    if *tap == layer {
                        *slot = Some(h.clone());
                    }
                }
                Ok(())
            });
        match h {
            Ok(h) => Ok((h, captured.into_iter().flatten().collect())),
            Err(error) => {
                state.discard();
                Err(error)
            }
        }
    }

    fn run_prompt(
        &self,
        state: &mut TargetState<B>,
        ids: &[u32],
    ) -> Result<(B::Tensor, Context<B>)> {
        self.check_ids(ids)?;
        let (h, taps) = self.run(state, &self.backend().upload_ids(ids)?, ids.len())?;
        let rows = ids.len();
        Ok((h, Context { taps, rows }))
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::request("prompt", "a chunk without tokens"));
        }
        match ids
            .iter()
            .find(|id| **id as usize >= self.decoder.vocab_size())
        {
            Some(id) => Err(Error::request(
                "prompt",
                format!(
                    "id {id} is outside the vocabulary of {} ids",
                    self.decoder.vocab_size()
                ),
            )),
            None => Ok(()),
        }
    }
}

impl<B: Backend> TargetModel for Target<B> {
    type State = TargetState<B>;
    type Draft = Drafted<B>;
    type Context = Context<B>;
    type LastRow<'s> = LastRow<'s, B>;
    type Pending<'s> = Pending<'s, B>;

    fn new_state(&self) -> Result<TargetState<B>> {
        Ok(TargetState::new(self.decoder.new_caches()?))
    }

    fn position(&self, state: &TargetState<B>) -> usize {
        state.position()
    }

    fn prefill(&self, state: &mut TargetState<B>, ids: &[u32]) -> Result<Context<B>> {
        let (_, context) = self.run_prompt(state, ids)?;
        state.keep(ids.len())?;
        Ok(context)
    }

    fn prefill_last<'s>(
        &'s self,
        state: &'s mut TargetState<B>,
        ids: &[u32],
    ) -> Result<(Context<B>, LastRow<'s, B>)> {
        let (h, context) = self.run_prompt(state, ids)?;
        let logits = self
            .backend()
            .slice(&h, 1, ids.len() - 1, 1)
            .and_then(|h| self.decoder.logits(&h))
            .inspect_err(|_| state.discard())?;
        state.prepare(ids.len())?;
        let row = LastRow {
            target: self,
            state,
            chunk: Some(ids.to_vec()),
            logits,
        };
        Ok((context, row))
    }

    fn verify<'s>(
        &'s self,
        state: &'s mut TargetState<B>,
        anchor: u32,
        draft: Option<&Drafted<B>>,
    ) -> Result<Pending<'s, B>> {
        self.check_ids(&[anchor])?;
        let ids = self.backend().block_ids(anchor, draft.map(|d| &d.ids))?;
        let rows = 1 + draft.map_or(0, |d| d.rows);
        let (h, taps) = self.run(state, &ids, rows)?;
        match self.decoder.logits(&h) {
            Ok(logits) => Ok(Pending {
                target: self,
                state,
                ids,
                draft: draft.cloned(),
                logits,
                taps,
                rows,
            }),
            Err(error) => {
                state.discard();
                Err(error)
            }
        }
    }

    fn settle(&self, state: &mut TargetState<B>) -> Result<()> {
        state.check()?;
        let mut tensors = Vec::new();
        for cache in state.caches() {
            if let super::LayerCache::Recurrent(cache) = cache {
                tensors.extend([cache.window().clone(), cache.state().clone()]);
            }
        }
        self.backend()
            .evaluate(&tensors.iter().collect::<Vec<_>>())
            .inspect_err(|error| state.poison(error))
    }

    fn probe(&self, ids: &[u32], logits_from: usize) -> Result<Probe> {
        let rows = ids.len().checked_sub(logits_from).filter(|rows| *rows > 0);
        let rows = rows.ok_or_else(|| {
            let reason = format!("row {logits_from} of {} tokens", ids.len());
            Error::request("probe", reason)
        })?;
        let (layers, h) = self.trace_layers(ids)?;
        let b = self.backend();
        let logits = self.decoder.logits(&b.slice(&h, 1, logits_from, rows)?)?;
        Ok(Probe {
            layers: layers.iter().map(|h| b.read(h)).collect::<Result<_>>()?,
            logits: host_rows(b, &logits, rows)?,
        })
    }

    fn memory(&self, state: &TargetState<B>) -> StateMemory {
        state.memory()
    }
}

pub(super) fn host_rows<B: Backend>(
    b: &B,
    logits: &B::Tensor,
    rows: usize,
) -> Result<Vec<Vec<f32>>> {
    let all = b.read(logits)?;
    Ok(all.chunks(all.len() / rows).map(<[f32]>::to_vec).collect())
}

impl<B: Backend> Rows for LastRow<'_, B> {
    fn choose(&mut self, rule: &RowRule<'_>) -> Result<Verdict> {
        match self.target.backend().draw(&self.logits, None, rule)? {
            Ok(verdict) => Ok(verdict),
            Err(_) => {
                self.state.discard();
                let chunk = self.chunk.take().unwrap_or_default();
                let ids = self.target.backend().upload_ids(&chunk)?;
                let (rows, first) = (chunk.len(), self.state.position());
                Err(self
                    .target
                    .diagnose(self.state, &ids, rows, first, rows.saturating_sub(1)))
            }
        }
    }

    fn logits(&mut self) -> Result<Vec<Vec<f32>>> {
        host_rows(self.target.backend(), &self.logits, 1)
    }
}

impl<B: Backend> Drop for LastRow<'_, B> {
    fn drop(&mut self) {
        if let Some(chunk) = &self.chunk {
            self.state.keep_prepared(chunk.len());
        }
    }
}

impl<B: Backend> Rows for Pending<'_, B> {
    fn choose(&mut self, rule: &RowRule<'_>) -> Result<Verdict> {
        match self
            .target
            .backend()
            .draw(&self.logits, self.draft.as_ref(), rule)?
        {
            Ok(verdict) => Ok(verdict),
            Err(row) => {
                self.state.discard();
                Err(self
                    .target
                    .diagnose(self.state, &self.ids, self.rows, rule.position - 1, row))
            }
        }
    }

    fn logits(&mut self) -> Result<Vec<Vec<f32>>> {
        host_rows(self.target.backend(), &self.logits, self.rows)
    }
}

impl<B: Backend> spec::Pending for Pending<'_, B> {
    type Context = Context<B>;

    fn commit(mut self, keep: NonZeroUsize) -> Result<Context<B>> {
        let keep = keep.get();
        if keep > self.rows {
            return Err(Error::shape(
                "rows to keep",
                format!("1 to {}", self.rows),
                keep,
            ));
        }
        let b = self.target.backend();
        let taps = std::mem::take(&mut self.taps);
        let taps = if keep == self.rows {
            taps
        } else {
            taps.iter()
                .map(|t| b.slice(t, 1, 0, keep))
                .collect::<Result<_>>()?
        };
        self.state.keep(keep)?;
        Ok(Context { taps, rows: keep })
    }
}

impl<B: Backend> Drop for Pending<'_, B> {
    fn drop(&mut self) {
        // After a commit nothing is pending, so this is the rollback of a block that was not committed.
        self.state.discard();
    }
}
