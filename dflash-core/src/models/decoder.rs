//! The skeleton that all targets share.

use std::rc::Rc;

use super::layer::{Layer, LayerCache};
use crate::backend::{Backend, RopeSpec};
use crate::config::TargetConfig;
use crate::nn::{Builder, Norm};
use crate::{Error, Result};

/// Embedding, layers, final norm and head.
#[derive(Debug)]
pub struct Decoder<B: Backend> {
    backend: B,
    embedding: Rc<B::Weight>,
    embedding_scale: f32,
    layers: Vec<Layer<B>>,
    norm: Norm<B>,
    head: Rc<B::Weight>,
    rope: RopeSpec,
    vocab_size: usize,
}

/// What a draft borrows of its target.
#[derive(Debug)]
pub struct Borrowed<B: Backend> {
    /// `[vocab, hidden]`.
    pub embedding: Rc<B::Weight>,
    /// The target's own factor on embeddings.
    pub embedding_scale: f32,
    /// `[vocab, hidden]`; the embedding itself when tied.
    pub head: Rc<B::Weight>,
}

impl<B: Backend> Decoder<B> {
    /// Claims the whole model.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn load(b: &mut Builder<'_, B>, config: &TargetConfig) -> Result<Self> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = Rc::new(b.weight("embed_tokens", vocab, hidden)?);
        let head = if b.claims.head_is_tied(config.tie_word_embeddings) {
            Rc::clone(&embedding)
        } else {
            Rc::new(b.weight("lm_head", vocab, hidden)?)
        };
        let layers = (0..config.layers.len())
            .map(|i| Layer::load(b, i, config))
            .collect::<Result<_>>()?;
        Ok(Self {
            backend: b.backend.clone(),
            embedding,
            embedding_scale: 1.0,
            layers,
            norm: b.offset_norm("norm", hidden, config.rms_norm_eps)?,
            head,
            rope: (&config.attention.rope).into(),
            vocab_size: vocab,
        })
    }

    /// The backend that it runs on.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Ids below this exist.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// What a draft needs of it.
    pub fn lend(&self) -> Borrowed<B> {
        Borrowed {
            embedding: Rc::clone(&self.embedding),
            embedding_scale: self.embedding_scale,
            head: Rc::clone(&self.head),
        }
    }

    /// Empty caches, one per layer.
    ///
    /// # Errors
    /// The backend's.
    pub fn new_caches(&self) -> Result<Vec<LayerCache<B>>> {
        self.layers
            .iter()
            .map(|l| l.new_cache(&self.backend))
            .collect()
    }

    /// Embeds ids as the target itself does: `[1, rows, hidden]`.
    ///
    /// # Errors
    /// The backend's.
    pub fn embed(&self, ids: &B::Ids) -> Result<B::Tensor> {
        let h = self
            .backend
            .embedding(&self.embedding, ids, self.backend.dtype())?;
        if self.embedding_scale == 1.0 {
            Ok(h)
        } else {
            self.backend.affine(&h, self.embedding_scale, 0.0)
        }
    }

    /// Runs the layers. The rows become pending in the caches; `seen` is handed every layer's output.
    ///
    /// # Errors
    /// The backend's, with the layer.
    pub fn forward(
        &self,
        caches: &mut [LayerCache<B>],
        position: usize,
        ids: &B::Ids,
        rows: usize,
        seen: &mut dyn FnMut(usize, &B::Tensor) -> Result<()>,
    ) -> Result<B::Tensor> {
        let b = &self.backend;
        let angles = b.rope_angles(&self.rope, position, rows)?;
        let mut h = self.embed(ids)?;
        for (i, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            h = layer
                .forward(b, &h, cache, &angles, position)
                .and_then(|h| b.begin(&h).map(|()| h))
                .map_err(|e: Error| e.at(format!("layer {i}")))?;
            seen(i, &h)?;
        }
        Ok(h)
    }

    /// Logits `[1, rows, vocab]` of the last layer's output.
    ///
    /// # Errors
    /// The backend's.
    pub fn logits(&self, h: &B::Tensor) -> Result<B::Tensor> {
        self.backend
            .linear(&self.head, &self.norm.forward(&self.backend, h)?, None)
    }
}
