//! A matrix as a checkpoint stores it: plain or quantized.

use std::ops::Range;

use super::tensor::StoredTensor;

/// The weight of a linear layer or an embedding, `[out, in]`, in its stored format.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per module, and gone once the backend has made its own weight of it"
)]
pub enum WeightSource {
    /// One tensor `[out, in]` in F32, BF16 or F16.
    Plain(StoredTensor),
    /// Groups of `group` consecutive weights of a row: `weight = code * scale + bias`.
    Affine {
        /// U32 words `[out, in * bits / 32]`: one stream of codes per row, lowest bits first.
        codes: StoredTensor,
        /// Floats `[out, in / group]`.
        scales: StoredTensor,
        /// Floats `[out, in / group]`, of the same type as the scales.
        biases: StoredTensor,
        /// Bits per code.
        bits: u8,
        /// Weights per scale.
        group: usize,
        /// Rows.
        out: usize,
        /// Columns.
        inp: usize,
    },
}

impl WeightSource {
    /// Rows: output features, or ids of an embedding.
    pub fn out(&self) -> usize {
        match self {
            Self::Plain(tensor) => tensor.shape[0],
            Self::Affine { out, .. } => *out,
        }
    }

    /// Columns: input features.
    pub fn inp(&self) -> usize {
        match self {
            Self::Plain(tensor) => tensor.shape[1],
            Self::Affine { inp, .. } => *inp,
        }
    }

    /// Size in the file.
    pub fn stored_bytes(&self) -> usize {
        match self {
            Self::Plain(tensor) => tensor.bytes.len(),
            Self::Affine {
                codes,
                scales,
                biases,
                ..
            } => codes.bytes.len() + scales.bytes.len() + biases.bytes.len(),
        }
    }

    /// The name of the weight tensor in the file.
    pub fn name(&self) -> &str {
        match self {
            Self::Plain(tensor) | Self::Affine { codes: tensor, .. } => &tensor.name,
        }
    }

    /// The rows `range` as a weight of their own, without copying.
    ///
    /// # Panics
    /// If the range is outside.
    #[must_use]
    pub fn rows(&self, range: Range<usize>) -> Self {
        match self {
            Self::Plain(tensor) => Self::Plain(tensor.rows(range)),
            Self::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                inp,
                ..
            } => Self::Affine {
                out: range.len(),
                codes: codes.rows(range.clone()),
                scales: scales.rows(range.clone()),
                biases: biases.rows(range),
                bits: *bits,
                group: *group,
                inp: *inp,
            },
        }
    }
}
