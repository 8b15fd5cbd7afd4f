//! Tensors of a file in MLX's memory.

use dflash_core::checkpoint::StoredTensor;
use dflash_core::{DType, Error, Result};
use half::{bf16, f16};
use mlx_rs::Array;

use crate::array::ints;

/// A tensor of a file with its own numbers.
pub(crate) fn floats(stored: &StoredTensor) -> Result<Array> {
    let bytes: &[u8] = &stored.bytes;
    let shape = ints(&stored.shape);
    let count: usize = stored.shape.iter().product();
    let dtype = stored
        .float_dtype()
        .filter(|d| count > 0 && bytes.len() == count * d.size());
    match dtype {
        Some(DType::F32) => {
            let numbers = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            Ok(Array::from_slice(&numbers.collect::<Vec<_>>(), &shape))
        }
        Some(DType::Bf16) => {
            let numbers = bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b));
            Ok(Array::from_slice(&numbers.collect::<Vec<_>>(), &shape))
        }
        Some(DType::F16) => {
            let numbers = bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b));
            Ok(Array::from_slice(&numbers.collect::<Vec<_>>(), &shape))
        }
        None => Err(misfit(stored, "numbers in f32, bf16 or f16")),
    }
}

/// Packed codes.
pub(crate) fn words(stored: &StoredTensor) -> Result<Array> {
    let bytes: &[u8] = &stored.bytes;
    let (words, rest) = bytes.as_chunks();
    if !rest.is_empty() || words.len() != stored.shape.iter().product::<usize>() || words.is_empty()
    {
        return Err(misfit(stored, "words of 32 bits"));
    }
    let words: Vec<u32> = words.iter().map(|b| u32::from_le_bytes(*b)).collect();
    Ok(Array::from_slice(&words, &ints(&stored.shape)))
}

/// Bytes that are numbers of a format that MLX has no name for.
pub(crate) fn bytes(stored: &StoredTensor) -> Result<Array> {
    let bytes: &[u8] = &stored.bytes;
    if bytes.len() != stored.shape.iter().product::<usize>() || bytes.is_empty() {
        return Err(misfit(stored, "one byte each"));
    }
    Ok(Array::from_slice(bytes, &ints(&stored.shape)))
}

fn misfit(stored: &StoredTensor, expected: &str) -> Error {
    let found = format!(
        "{:?} of {:?} in {} bytes",
        stored.shape,
        stored.dtype,
        stored.bytes.len()
    );
    Error::shape(format!("weight `{}`", stored.name), expected, found)
}
