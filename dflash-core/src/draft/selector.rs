//! DFlash 2's candidate selector: one coherent chain through the slots' best tokens.

use crate::Result;
use crate::backend::{Backend, Drafted, PathRule};
use crate::config::Dflash2Config;
use crate::nn::{Builder, Linear};
use crate::spec::ProposalRule;

/// Codebooks and the projection that scores a candidate with the token before it.
#[derive(Debug)]
pub(super) struct Selector<B: Backend> {
    predecessor: B::Weight,
    successor: B::Weight,
    projection: Linear<B>,
    top_k: usize,
}

impl<B: Backend> Selector<B> {
    /// Claims `candidate_selector.*`; the files spell the codebooks with or without `.weight`.
    pub(super) fn load(
        b: &mut Builder<'_, B>,
        hidden: usize,
        vocab: usize,
        config: &Dflash2Config,
    ) -> Result<Self> {
        let rank = config.selector_rank;
        let mut codebook = |name: &str| {
            let source = b
                .claims
                .codebook(&format!("candidate_selector.{name}"), vocab, rank)?;
            b.backend.weight(source)
        };
        let (predecessor, successor) = (
            codebook("predecessor_codebook")?,
            codebook("successor_codebook")?,
        );
        let projection = b.linear("candidate_selector.hidden_projection", rank, hidden, false)?;
        Ok(Self {
            predecessor,
            successor,
            projection,
            top_k: config.selector_top_k,
        })
    }

    /// Walks the slots of normed rows `[1, slots, hidden]` and their logits.
    pub(super) fn select(
        &self,
        b: &B,
        hidden: &B::Tensor,
        logits: &B::Tensor,
        anchor: u32,
        rule: &ProposalRule,
    ) -> Result<Drafted<B>> {
        let projected = self.projection.forward(b, hidden)?;
        let path = PathRule {
            predecessor: &self.predecessor,
            successor: &self.successor,
            anchor,
            top_k: self.top_k,
        };
        b.path_select(logits, &projected, &path, rule)
    }
}
