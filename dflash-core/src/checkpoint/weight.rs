//! A matrix as a checkpoint stores it: plain or quantized.

use std::ops::Range;

use super::small_float::SmallFloat;
use super::tensor::{StoredTensor, StoredType};
use crate::{Error, Result};

/// The weight of a linear layer or an embedding, `[out, in]`, in its stored format.
#[derive(Debug, Clone)]
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
    /// Groups of consecutive small floats of a row: `weight = number(code) * scale`.
    SmallFloat {
        /// U32 words `[out, in * bits / 32]`: one stream of codes per row, lowest bits first.
        codes: StoredTensor,
        /// U8 `[out, in / group]`.
        scales: StoredTensor,
        /// What codes and scales stand for.
        format: SmallFloat,
        /// Rows.
        out: usize,
        /// Columns, a multiple of 32.
        inp: usize,
    },
}

impl WeightSource {
    /// Rows: output features, or ids of an embedding.
    pub fn out(&self) -> usize {
        match self {
            Self::Plain(tensor) => tensor.shape[0],
            Self::Affine { out, .. } | Self::SmallFloat { out, .. } => *out,
        }
    }

    /// Columns: input features.
    pub fn inp(&self) -> usize {
        match self {
            Self::Plain(tensor) => tensor.shape[1],
            Self::Affine { inp, .. } | Self::SmallFloat { inp, .. } => *inp,
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
            Self::SmallFloat { codes, scales, .. } => codes.bytes.len() + scales.bytes.len(),
        }
    }

    /// The name of the weight tensor in the file.
    pub fn name(&self) -> &str {
        match self {
            Self::Plain(tensor)
            | Self::Affine { codes: tensor, .. }
            | Self::SmallFloat { codes: tensor, .. } => &tensor.name,
        }
    }

    /// Checks that the tensors have the sizes and number formats that the fields say. Every backend
    /// may rely on it after this; weights that [`super::Claims`] hands out pass.
    ///
    /// # Errors
    /// [`Error::Shape`] if sizes do not fit, [`Error::Unsupported`] for a number format.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Plain(tensor) => {
                let dtype = tensor.float()?;
                let &[out, inp] = tensor.shape.as_slice() else {
                    return Err(Error::shape(
                        format!("weight `{}`", tensor.name),
                        "[out, in]",
                        format!("{:?}", tensor.shape),
                    ));
                };
                sized(tensor, out * inp * dtype.size())
            }
            Self::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                out,
                inp,
            } => {
                let fits = matches!(bits, 1..=6 | 8) && matches!(group, 32 | 64 | 128);
                if !fits || !inp.is_multiple_of(*group) {
                    return Err(Error::shape(
                        format!("weight `{}`", codes.name),
                        "1 to 6 or 8 bits and whole groups of 32, 64 or 128 in a row",
                        format!("{inp} columns of {bits} bits in groups of {group}"),
                    ));
                }
                if codes.dtype != StoredType::U32 {
                    return Err(codes.not_words());
                }
                sized(codes, out * (inp / 8 * usize::from(*bits)))?;
                let dtype = scales.float()?;
                if biases.float()? != dtype {
                    return Err(Error::shape(
                        format!("number format of `{}`", biases.name),
                        format!("that of its scales, {}", scales.dtype),
                        biases.dtype,
                    ));
                }
                let factors = out * (inp / group) * dtype.size();
                sized(scales, factors)?;
                sized(biases, factors)
            }
            Self::SmallFloat {
                codes,
                scales,
                format,
                out,
                inp,
            } => {
                if !inp.is_multiple_of(32) {
                    return Err(Error::shape(
                        format!("columns of `{}` in {}", codes.name, format.name()),
                        "a multiple of 32",
                        inp,
                    ));
                }
                if codes.dtype != StoredType::U32 {
                    return Err(codes.not_words());
                }
                sized(codes, out * (inp / 8 * format.bits()))?;
                if scales.dtype != StoredType::U8 {
                    let what = format!("tensor `{}` in {}", scales.name, scales.dtype);
                    return Err(Error::unsupported(what)
                        .with_hint(format!("scales of {} are stored in U8", format.name())));
                }
                sized(scales, out * (inp / format.group()))
            }
        }
    }

    /// The rows `range` as a weight of their own, without copying.
    ///
    /// # Panics
    /// If the range is outside.
    #[must_use]
    pub fn rows(&self, range: Range<usize>) -> Self {
        self.cut(range.len(), |tensor| tensor.rows(range.clone()))
    }

    /// Weight `i` of several in one, whose tensors have an axis in front.
    pub(super) fn part(&self, i: usize) -> Self {
        self.cut(self.out(), |tensor| tensor.part(i))
    }

    /// The same with another number of rows and parts of the tensors.
    fn cut(&self, out: usize, part: impl Fn(&StoredTensor) -> StoredTensor) -> Self {
        match self {
            Self::Plain(tensor) => Self::Plain(part(tensor)),
            Self::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                inp,
                ..
            } => Self::Affine {
                codes: part(codes),
                scales: part(scales),
                biases: part(biases),
                bits: *bits,
                group: *group,
                out,
                inp: *inp,
            },
            Self::SmallFloat {
                codes,
                scales,
                format,
                inp,
                ..
            } => Self::SmallFloat {
                codes: part(codes),
                scales: part(scales),
                format: *format,
                out,
                inp: *inp,
            },
        }
    }
}

/// # Errors
/// A tensor does not have that many bytes.
fn sized(tensor: &StoredTensor, expected: usize) -> Result<()> {
    if tensor.bytes.len() == expected {
        return Ok(());
    }
    Err(Error::shape(
        format!("bytes of `{}`", tensor.name),
        expected,
        tensor.bytes.len(),
    ))
}
