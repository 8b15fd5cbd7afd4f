//! Numbers of a processor tensor as slices.

use std::ops::Deref;

use candle_core::{Device, Layout, Storage, Tensor, WithDType};
use dflash_core::{Error, Result};

/// A tensor's memory, locked for reading.
pub(super) struct View<'a, S> {
    storage: S,
    layout: &'a Layout,
}

/// Locks a tensor's memory for reading.
pub(super) fn view(t: &Tensor) -> View<'_, impl Deref<Target = Storage>> {
    let (storage, layout) = t.storage_and_layout();
    View { storage, layout }
}

impl<S: Deref<Target = Storage>> View<'_, S> {
    /// From the first number on; the layout's strides say where the others are.
    pub(super) fn strided(&self, op: &'static str) -> Result<&[f32]> {
        let Storage::Cpu(storage) = &*self.storage else {
            return Err(Error::backend(op, "the tensor is not in processor memory"));
        };
        let all = f32::cpu_storage_as_slice(storage).map_err(|e| Error::backend(op, e))?;
        Ok(&all[self.layout.start_offset()..])
    }

    /// All numbers in order; the tensor must be contiguous.
    pub(super) fn dense(&self, op: &'static str) -> Result<&[f32]> {
        if !self.layout.is_contiguous() {
            return Err(Error::backend(op, "the tensor is not contiguous"));
        }
        Ok(&self.strided(op)?[..self.layout.shape().elem_count()])
    }
}

/// The same numbers without gaps; no copy if there are none.
pub(super) fn dense(op: &'static str, t: &Tensor) -> Result<Tensor> {
    t.contiguous().map_err(|e| Error::backend(op, e))
}

/// A tensor around numbers.
pub(super) fn tensor(op: &'static str, data: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(data, shape, &Device::Cpu).map_err(|e| Error::backend(op, e))
}

/// Three sizes, the first of which is 1.
pub(super) fn rows_of(op: &'static str, t: &Tensor) -> Result<(usize, usize)> {
    match t.dims() {
        &[1, rows, width] if width > 0 => Ok((rows, width)),
        other => Err(Error::shape(op, "[1, rows, width]", format!("{other:?}"))),
    }
}

/// Checks a whole shape.
pub(super) fn expect(op: &'static str, t: &Tensor, shape: &[usize]) -> Result<()> {
    if t.dims() == shape {
        Ok(())
    } else {
        Err(Error::shape(
            op,
            format!("{shape:?}"),
            format!("{:?}", t.dims()),
        ))
    }
}
