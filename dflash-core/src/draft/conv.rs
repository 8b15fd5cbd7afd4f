//! DFlash 2's short dynamic convolution around a sub-layer.

use crate::backend::Backend;
use crate::config::Dflash2Config;
use crate::nn::{Builder, Linear};
use crate::{DType, Result};

/// Kernels of both sides of one sub-layer: side 0 before it, side 1 after it.
#[derive(Debug)]
pub(super) struct DynamicConv<B: Backend> {
    /// `[taps, hidden]` per side.
    base: [B::Tensor; 2],
    projection: Linear<B>,
    taps: usize,
    groups: usize,
}

/// The input-dependent part of the kernels of a block: `[1, rows, taps, groups]` per side.
pub(super) struct Kernels<B: Backend>([B::Tensor; 2]);

impl<B: Backend> DynamicConv<B> {
    /// Claims `module.base_kernel` `[2, taps, hidden]` and `module.kernel_projection` `[2 * taps * groups, hidden]`.
    pub(super) fn load(
        b: &mut Builder<'_, B>,
        module: &str,
        hidden: usize,
        config: &Dflash2Config,
    ) -> Result<Self> {
        let (taps, groups) = (config.conv_kernel_size, hidden / config.conv_group_size);
        let both = b
            .claims
            .require(&format!("{module}.base_kernel"), &[2, taps, hidden])?
            .to_f32()?;
        let side = |half: &[f32]| b.backend.upload(half, &[taps, hidden], DType::F32);
        let base = [side(&both[..taps * hidden])?, side(&both[taps * hidden..])?];
        let projection = b.linear(
            &format!("{module}.kernel_projection"),
            2 * taps * groups,
            hidden,
            false,
        )?;
        Ok(Self {
            base,
            projection,
            taps,
            groups,
        })
    }

    /// Kernels for a block, from the sub-layer's normed input.
    pub(super) fn kernels(&self, b: &B, x: &B::Tensor) -> Result<Kernels<B>> {
        let rows = b.dim(x, 1);
        let size = self.taps * self.groups;
        let all = self.projection.forward(b, x)?;
        let side = |i: usize| {
            b.reshape(
                &b.slice(&all, 2, i * size, size)?,
                &[1, rows, self.taps, self.groups],
            )
        };
        Ok(Kernels([side(0)?, side(1)?]))
    }

    /// Convolves block rows on one side of the sub-layer.
    pub(super) fn apply(
        &self,
        b: &B,
        y: &B::Tensor,
        kernels: &Kernels<B>,
        side: usize,
    ) -> Result<B::Tensor> {
        b.dynamic_conv(y, &self.base[side], &kernels.0[side])
    }
}
