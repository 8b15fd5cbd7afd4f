//! The sparse feed-forward layer.

use super::{Builder, Linear, Mlp};
use crate::Result;
use crate::backend::{Backend, MoeParams, Unary};
use crate::config::MoeConfig;

/// Routed experts and, in some models, a shared one behind a sigmoid gate.
#[derive(Debug)]
pub struct Moe<B: Backend> {
    router: Linear<B>,
    experts: B::Experts,
    params: MoeParams,
    shared: Option<(Mlp<B>, Linear<B>)>,
}

impl<B: Backend> Moe<B> {
    /// Claims the router `module.gate`, the experts, and `module.shared_expert` with its gate.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn load(
        b: &mut Builder<'_, B>,
        module: &str,
        hidden: usize,
        config: &MoeConfig,
    ) -> Result<Self> {
        let router = b.linear(&format!("{module}.gate"), config.experts, hidden, false)?;
        let experts = b.claims.experts(module, hidden, config)?;
        let experts = b.backend.experts(experts)?;
        let shared = match config.shared_intermediate_size {
            Some(size) => {
                let mlp = Mlp::load(b, &format!("{module}.shared_expert"), hidden, size, false)?;
                Some((
                    mlp,
                    b.linear(&format!("{module}.shared_expert_gate"), 1, hidden, false)?,
                ))
            }
            None => None,
        };
        Ok(Self {
            router,
            experts,
            params: MoeParams {
                top_k: config.top_k,
                normalize: config.norm_topk,
            },
            shared,
        })
    }

    /// `[1, rows, hidden]` to the same.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward(&self, b: &B, x: &B::Tensor) -> Result<B::Tensor> {
        let logits = self.router.forward(b, x)?;
        let routed = b.moe(x, &logits, &self.experts, &self.params)?;
        let Some((mlp, gate)) = &self.shared else {
            return Ok(routed);
        };
        let gate = b.unary(&gate.forward(b, x)?, Unary::Sigmoid)?;
        b.add(&routed, &b.mul(&mlp.forward(b, x)?, &gate)?)
    }
}
