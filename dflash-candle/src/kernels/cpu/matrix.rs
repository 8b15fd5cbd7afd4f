//! Weight matrices over the bytes of their file.

use std::ops::Range;

use dflash_core::DType;

use super::codes::Codes;
use super::tile::{Bf16, F16, F32, Format};

/// A weight matrix `[outputs, inner]`, row-major little-endian bytes, possibly unaligned.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    pub(crate) numbers: Numbers<'a>,
    pub(crate) outputs: usize,
    pub(crate) inner: usize,
}

/// How a matrix is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Numbers<'a> {
    /// Floats.
    Plain { bytes: &'a [u8], dtype: DType },
    /// Codes and the factors of their groups.
    Coded(Codes<'a>),
}

impl<'a> Matrix<'a> {
    /// The floats in `bytes`.
    ///
    /// # Panics
    /// If the length of `bytes` is not that of `outputs * inner` numbers.
    pub fn new(bytes: &'a [u8], dtype: DType, outputs: usize, inner: usize) -> Self {
        assert_eq!(
            bytes.len(),
            outputs * inner * dtype.size(),
            "invariant: a weight's bytes match its shape"
        );
        Self {
            numbers: Numbers::Plain { bytes, dtype },
            outputs,
            inner,
        }
    }

    /// The numbers that `codes` stand for.
    ///
    /// # Panics
    /// If the codes are not those of `outputs * inner` numbers.
    pub fn coded(codes: Codes<'a>, outputs: usize, inner: usize) -> Self {
        codes.check(outputs, inner);
        Self {
            numbers: Numbers::Coded(codes),
            outputs,
            inner,
        }
    }

    /// Rows of the matrix, outputs of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix, the length of an input row.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// Whether packed rows hold even and odd places apart.
    pub(crate) fn interleaved(&self) -> bool {
        match self.numbers {
            Numbers::Plain { dtype, .. } => match dtype {
                DType::F32 => F32::INTERLEAVED,
                DType::Bf16 => Bf16::INTERLEAVED,
                DType::F16 => F16::INTERLEAVED,
            },
            Numbers::Coded(codes) => codes.interleaved(),
        }
    }

    /// The first bytes of some rows: of their numbers, or of their codes.
    pub(crate) fn rows(&self, range: Range<usize>) -> &'a [u8] {
        let (bytes, size) = match self.numbers {
            Numbers::Plain { bytes, dtype } => (bytes, self.inner * dtype.size()),
            Numbers::Coded(codes) => (codes.bytes(), codes.row_bytes(self.inner)),
        };
        &bytes[range.start * size..range.end * size]
    }
}
