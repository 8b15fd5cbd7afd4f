//! The dense feed-forward layer.

use super::{Builder, Linear};
use crate::Result;
use crate::backend::{Backend, Unary};

/// SwiGLU: `down(silu(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct Mlp<B: Backend> {
    gate: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    /// Claims `module.{gate,up,down}_proj`.
    ///
    /// # Errors
    /// A missing tensor or another shape, by name.
    pub fn load(
        b: &mut Builder<'_, B>,
        module: &str,
        hidden: usize,
        intermediate: usize,
        bias: bool,
    ) -> Result<Self> {
        Ok(Self {
            gate: b.linear(&format!("{module}.gate_proj"), intermediate, hidden, bias)?,
            up: b.linear(&format!("{module}.up_proj"), intermediate, hidden, bias)?,
            down: b.linear(&format!("{module}.down_proj"), hidden, intermediate, bias)?,
        })
    }

    /// `[1, rows, hidden]` to the same.
    ///
    /// # Errors
    /// The backend's.
    pub fn forward(&self, b: &B, x: &B::Tensor) -> Result<B::Tensor> {
        let inner = match (self.gate.plain_weight(), self.up.plain_weight()) {
            (Some(gate), Some(up)) => b.swiglu(gate, up, x)?,
            _ => b.mul(
                &b.unary(&self.gate.forward(b, x)?, Unary::Silu)?,
                &self.up.forward(b, x)?,
            )?,
        };
        self.down.forward(b, &inner)
    }
}
