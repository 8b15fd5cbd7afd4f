//! Between this workspace's types and MLX's.

use dflash_core::{DType, Error, Result};
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use mlx_rs::{Array, Dtype};

use crate::weight::Place;

/// An error of MLX under the name of the operation that met it.
pub(crate) fn at<T>(op: &'static str, result: Result<T, Exception>) -> Result<T> {
    result.map_err(|e| Error::backend(op, e))
}

/// A size as MLX counts. Sizes past its range become one that no array has, which MLX refuses.
pub(crate) fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

/// A shape as MLX counts.
pub(crate) fn ints(shape: &[usize]) -> Vec<i32> {
    shape.iter().map(|d| int(*d)).collect()
}

/// A shape as this workspace counts.
pub(crate) fn sizes(t: &Array) -> Vec<usize> {
    t.shape()
        .iter()
        .map(|d| usize::try_from(*d).unwrap_or(0))
        .collect()
}

/// Size of an axis; 0 if there is no such axis.
pub(crate) fn size(t: &Array, axis: usize) -> usize {
    t.shape()
        .get(axis)
        .map_or(0, |d| usize::try_from(*d).unwrap_or(0))
}

/// MLX's name of a format.
pub(crate) const fn native(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::Float32,
        DType::Bf16 => Dtype::Bfloat16,
        DType::F16 => Dtype::Float16,
    }
}

/// The same numbers in a format; nothing is queued if they have it.
pub(crate) fn cast(t: &Array, dtype: Dtype) -> Result<Array, Exception> {
    if t.dtype() == dtype {
        Ok(t.clone())
    } else {
        t.as_dtype(dtype)
    }
}

/// The same numbers as float32.
pub(crate) fn wide(t: &Array) -> Result<Array, Exception> {
    cast(t, Dtype::Float32)
}

/// `len` entries of an axis from `start`.
pub(crate) fn part(t: &Array, axis: usize, start: usize, len: usize) -> Result<Array, Exception> {
    if start == 0 && len == size(t, axis) {
        return Ok(t.clone());
    }
    t.try_index(range_of(axis, start, len).as_slice())
}

/// The index of `len` entries of an axis from `start`, and of all entries of the other axes.
pub(crate) fn range_of(axis: usize, start: usize, len: usize) -> Vec<ArrayIndexOp<'static>> {
    let mut index: Vec<ArrayIndexOp<'static>> = (0..axis).map(|_| (..).index_op()).collect();
    index.push((int(start)..int(start + len)).index_op());
    index
}

/// `x / (1 + e^-x)`.
pub(crate) fn silu(x: &Array, place: Place) -> Result<Array, Exception> {
    match place {
        Place::Processor => cast(&wide(x)?.divide(&above_one(x)?)?, x.dtype()),
        Place::Metal => x.multiply(&mlx_rs::ops::sigmoid(x)?),
    }
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: &Array, place: Place) -> Result<Array, Exception> {
    match place {
        Place::Processor => cast(&above_one(x)?.reciprocal()?, x.dtype()),
        Place::Metal => mlx_rs::ops::sigmoid(x),
    }
}

/// `1 + e^-x` in float32. On the processor MLX raises a number to powers three times as fast as it
/// takes exponentials.
fn above_one(x: &Array) -> Result<Array, Exception> {
    let inverse = Array::from_f32((-1.0_f32).exp());
    inverse.power(&wide(x)?)?.add(Array::from_f32(1.0))
}
