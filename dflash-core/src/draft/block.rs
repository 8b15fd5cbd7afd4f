//! The draft network: one pass over a block of `[anchor, mask, …]`.

use std::cell::RefCell;

use super::layer::Layer;
use super::packing::{Packed, Packing};
use super::selector::Selector;
use super::state::DraftState;
use crate::backend::{Backend, Drafted, RopeSpec, Unary};
use crate::checkpoint::Checkpoint;
use crate::config::{DraftConfig, QuantSpec};
use crate::models::{Borrowed, Context, Target};
use crate::nn::{Builder, Linear, Norm, Repack};
use crate::spec::{DraftMemory, DraftModel, ProposalRule};
use crate::{Error, Result};

/// How a draft is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftOptions {
    /// Bounds the context of every layer.
    pub window: Option<usize>,
    /// Quantizes the projections.
    pub quantize: Option<QuantSpec>,
}

/// A draft bound to its target, whose embedding and head it borrows.
#[derive(Debug)]
pub struct Draft<B: Backend> {
    backend: B,
    borrowed: Borrowed<B>,
    fc: Linear<B>,
    context_norm: Norm<B>,
    layers: Vec<Layer<B>>,
    norm: Norm<B>,
    selector: Option<Selector<B>>,
    rope: RopeSpec,
    /// The largest window, if every layer slides.
    reach: Option<usize>,
    block_size: usize,
    mask: u32,
    embedding_scale: f32,
    multiplier: f32,
    soft_cap: Option<f32>,
    packed: Option<Packed>,
    /// Mask ids by number of slots.
    masks: RefCell<Vec<Option<B::Ids>>>,
}

/// A block's inner results, for comparison with recorded ones.
#[derive(Debug)]
pub struct BlockTrace<B: Backend> {
    /// `[1, rows, hidden]` after the final norm.
    pub hidden: B::Tensor,
    /// `[1, rows, vocab]`.
    pub logits: B::Tensor,
}

impl<B: Backend> Draft<B> {
    /// Claims a checkpoint's tensors and borrows the target's embedding and head.
    /// Notes name what was skipped by rule, and projections that could not be quantized.
    ///
    /// # Errors
    /// Tensors that are missing, of another shape or not claimed, by name; no projection can be quantized as asked. Pairing
    /// is the caller's to check first.
    pub fn load(
        backend: &B,
        config: &DraftConfig,
        checkpoint: &Checkpoint,
        borrowed: Borrowed<B>,
        options: DraftOptions,
    ) -> Result<(Self, Vec<String>)> {
        let mut claims = checkpoint.claims_for_draft(config)?;
        let mut packing = options.quantize.map(Packing::new);
        let repack = packing.as_mut().map(|p| p as &mut dyn Repack);
        let b = &mut Builder::new(backend, &mut claims).through(repack);
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let windows: Vec<Option<usize>> = config
            .layers
            .iter()
            .map(|l| shorter(l.window, options.window))
            .collect();
        let embedding_scale = match config.input_embedding_scale {
            Some(scale) if scale != 1.0 => scale,
            _ => borrowed.embedding_scale,
        };
        let mut draft = Self {
            backend: backend.clone(),
            fc: b.linear("fc", hidden, config.target_layer_ids.len() * hidden, false)?,
            context_norm: b.norm("hidden_norm", hidden, eps)?,
            layers: config
                .layers
                .iter()
                .zip(&windows)
                .enumerate()
                .map(|(i, (l, w))| Layer::load(b, i, config, l, *w))
                .collect::<Result<_>>()?,
            norm: b.norm("norm", hidden, eps)?,
            selector: config
                .dflash2
                .as_ref()
                .map(|c| Selector::load(b, hidden, config.vocab_size, c))
                .transpose()?,
            rope: (&config.rope).into(),
            reach: windows
                .iter()
                .copied()
                .collect::<Option<Vec<_>>>()
                .and_then(|w| w.into_iter().max()),
            block_size: config.block_size,
            mask: config.mask_token_id,
            embedding_scale,
            multiplier: config.output_multiplier,
            soft_cap: config.softcap,
            packed: None,
            masks: RefCell::new(vec![None; config.block_size]),
            borrowed,
        };
        let mut notes = claims.finish()?;
        if let Some(packing) = packing {
            let (packed, kept) = packing.finish()?;
            draft.packed = Some(packed);
            notes.extend(kept);
        }
        Ok((draft, notes))
    }

    /// What quantization at load has done, if it was asked for.
    pub fn packed(&self) -> Option<&Packed> {
        self.packed.as_ref()
    }

    /// The context rows `hidden_norm(fc(concat(taps)))` of committed tokens: `[1, rows, hidden]`.
    fn context_rows(&self, rows: &Context<B>) -> Result<B::Tensor> {
        let b = &self.backend;
        let taps = rows
            .taps
            .iter()
            .map(|t| b.cast(t, b.dtype()))
            .collect::<Result<Vec<_>>>()?;
        let joined = b.concat(&taps.iter().collect::<Vec<_>>(), 2)?;
        self.context_norm.forward(b, &self.fc.forward(b, &joined)?)
    }

    /// Runs a block of `rows` rows and returns the output of the last layer.
    fn run(
        &self,
        state: &DraftState<B>,
        anchor: u32,
        rows: usize,
        position: usize,
    ) -> Result<B::Tensor> {
        let b = &self.backend;
        let ids = b.block_ids(anchor, Some(&self.mask_ids(rows - 1)?))?;
        let mut h = b.embedding(&self.borrowed.embedding, &ids, b.dtype())?;
        if self.embedding_scale != 1.0 {
            h = b.affine(&h, self.embedding_scale, 0.0)?;
        }
        let angles = b.rope_angles(&self.rope, position, rows)?;
        for (i, (layer, context)) in self.layers.iter().zip(&state.contexts).enumerate() {
            h = layer
                .forward(b, &h, context, &angles, position)
                .and_then(|h| b.begin(&h).map(|()| h))
                .map_err(|e: Error| e.at(format!("draft layer {i}")))?;
        }
        Ok(h)
    }

    /// Logits of normed rows: the target's raw head, then the draft's own multiplier and soft cap.
    fn logits(&self, normed: &B::Tensor) -> Result<B::Tensor> {
        let b = &self.backend;
        let mut logits = b.linear(&self.borrowed.head, normed, None)?;
        if self.multiplier != 1.0 {
            logits = b.affine(&logits, self.multiplier, 0.0)?;
        }
        if let Some(cap) = self.soft_cap {
            logits = b.affine(
                &b.unary(&b.affine(&logits, cap.recip(), 0.0)?, Unary::Tanh)?,
                cap,
                0.0,
            )?;
        }
        Ok(logits)
    }

    fn mask_ids(&self, slots: usize) -> Result<B::Ids> {
        let mut masks = self.masks.borrow_mut();
        if let Some(Some(ids)) = masks.get(slots) {
            return Ok(ids.clone());
        }
        let ids = self.backend.upload_ids(&vec![self.mask; slots])?;
        if let Some(slot) = masks.get_mut(slots) {
            *slot = Some(ids.clone());
        }
        Ok(ids)
    }

    /// Runs a block and returns its inner results, slot 0 included.
    ///
    /// # Errors
    /// The backend's.
    pub fn trace(&self, state: &DraftState<B>, anchor: u32, rows: usize) -> Result<BlockTrace<B>> {
        let h = self.run(state, anchor, rows, state.absorbed())?;
        let hidden = self.norm.forward(&self.backend, &h)?;
        Ok(BlockTrace {
            logits: self.logits(&hidden)?,
            hidden,
        })
    }
}

/// The tighter of two windows.
fn shorter(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}

impl<B: Backend> DraftModel<Target<B>> for Draft<B> {
    type State = DraftState<B>;

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn new_state(&self) -> Result<DraftState<B>> {
        Ok(DraftState {
            contexts: self
                .layers
                .iter()
                .map(|l| l.new_context(&self.backend))
                .collect::<Result<_>>()?,
        })
    }

    fn absorbed(&self, state: &DraftState<B>) -> usize {
        state.absorbed()
    }

    fn absorb(
        &self,
        state: &mut DraftState<B>,
        mut rows: Context<B>,
        horizon: usize,
    ) -> Result<()> {
        let b = &self.backend;
        let mut position = state.absorbed();
        if let Some(reach) = self.reach {
            // The block at `horizon` sees the `reach - 1` rows before it.
            let gone = (horizon + 1)
                .saturating_sub(reach + position)
                .min(rows.rows);
            if gone > 0 && state.contexts.iter().all(|c| c.rows() == 0) {
                state.skip(gone);
                let left = rows.rows - gone;
                if left == 0 {
                    return Ok(());
                }
                rows.taps = rows
                    .taps
                    .iter()
                    .map(|t| b.slice(t, 1, gone, left))
                    .collect::<Result<_>>()?;
                rows.rows = left;
                position += gone;
            }
        }
        let c = self.context_rows(&rows)?;
        b.begin(&c)?;
        let angles = b.rope_angles(&self.rope, position, rows.rows)?;
        for (layer, context) in self.layers.iter().zip(&mut state.contexts) {
            layer.absorb(b, &c, &angles, context)?;
        }
        Ok(())
    }

    fn propose(
        &self,
        state: &mut DraftState<B>,
        anchor: u32,
        rule: &ProposalRule,
    ) -> Result<Drafted<B>> {
        let b = &self.backend;
        let h = self.run(state, anchor, rule.rows, rule.position)?;
        let normed = self.norm.forward(b, &b.slice(&h, 1, 1, rule.rows - 1)?)?;
        let logits = self.logits(&normed)?;
        match &self.selector {
            Some(selector) => selector.select(b, &normed, &logits, anchor, rule),
            None => b.propose(&logits, rule),
        }
    }

    fn memory(&self, state: &DraftState<B>) -> DraftMemory {
        state.memory()
    }
}
