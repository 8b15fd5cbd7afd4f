//! One tensor as a file stores it.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};
use safetensors::Dtype;

use super::bytes::Bytes;
use crate::{DType, Error, Result};

/// The number format of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoredType {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 32-bit words, which hold quantized codes.
    U32,
    /// Bytes, which hold the scales of some quantized formats.
    U8,
    /// Anything else, by the name in the file; such a tensor cannot be a weight.
    Other(&'static str),
}

impl StoredType {
    pub(super) fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::BF16 => Self::Bf16,
            Dtype::F16 => Self::F16,
            Dtype::U32 => Self::U32,
            Dtype::U8 => Self::U8,
            Dtype::F64 => Self::Other("F64"),
            Dtype::I64 => Self::Other("I64"),
            Dtype::I32 => Self::Other("I32"),
            Dtype::I16 => Self::Other("I16"),
            Dtype::I8 => Self::Other("I8"),
            Dtype::U64 => Self::Other("U64"),
            Dtype::U16 => Self::Other("U16"),
            Dtype::BOOL => Self::Other("BOOL"),
            Dtype::F8_E4M3 => Self::Other("F8_E4M3"),
            Dtype::F8_E5M2 => Self::Other("F8_E5M2"),
            Dtype::F8_E8M0 => Self::Other("F8_E8M0"),
            Dtype::F4 => Self::Other("F4"),
            _ => Self::Other("an uncommon type"),
        }
    }

    /// The name in safetensors files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::U32 => "U32",
            Self::U8 => "U8",
            Self::Other(name) => name,
        }
    }

    /// The floating-point format, if weights can have it.
    pub const fn float(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::Bf16 => Some(DType::Bf16),
            Self::F16 => Some(DType::F16),
            _ => None,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor in a file: row-major, little-endian, not copied.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// The name in the file; parts of a tensor keep the whole one's.
    pub name: String,
    /// The number format.
    pub dtype: StoredType,
    /// Sizes, outermost first. Their product times the format's size is the number of bytes.
    pub shape: Vec<usize>,
    /// The numbers.
    pub bytes: Bytes,
}

impl StoredTensor {
    /// The floating-point format, if it has one.
    pub const fn float_dtype(&self) -> Option<DType> {
        self.dtype.float()
    }

    /// How many numbers it holds.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The slices `range` of the outermost axis, without copying.
    ///
    /// # Panics
    /// If the range is outside, or the tensor is a scalar.
    #[must_use]
    pub fn rows(&self, range: Range<usize>) -> Self {
        let rows = self.shape[0];
        assert!(
            range.start <= range.end && range.end <= rows,
            "rows {range:?} of {rows} in `{}`",
            self.name
        );
        let row = self.bytes.len().checked_div(rows).unwrap_or(0);
        let mut shape = self.shape.clone();
        shape[0] = range.len();
        Self {
            name: self.name.clone(),
            dtype: self.dtype,
            shape,
            bytes: self.bytes.slice(range.start * row..range.end * row),
        }
    }

    /// Slice `i` of the outermost axis, which is dropped from the shape.
    ///
    /// # Panics
    /// If there is no such slice.
    #[must_use]
    pub fn part(&self, i: usize) -> Self {
        let mut part = self.rows(i..i + 1);
        part.shape.remove(0);
        part
    }

    /// The same numbers in another shape.
    ///
    /// # Panics
    /// If the number of elements differs.
    #[must_use]
    pub fn reshaped(mut self, shape: &[usize]) -> Self {
        assert_eq!(
            self.elements(),
            shape.iter().product::<usize>(),
            "`{}` as {shape:?}",
            self.name
        );
        self.shape = shape.to_vec();
        self
    }

    /// The values as f32. Allocates: for norms, biases and other small tensors.
    ///
    /// # Errors
    /// The tensor does not hold floating-point weights.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        match self.dtype {
            StoredType::F32 => Ok(self
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect()),
            StoredType::Bf16 => Ok(self
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| bf16::from_le_bytes(*b).to_f32())
                .collect()),
            StoredType::F16 => Ok(self
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f16::from_le_bytes(*b).to_f32())
                .collect()),
            StoredType::U32 | StoredType::U8 | StoredType::Other(_) => Err(self.not_a_float()),
        }
    }

    /// The first slice of the outermost axis with a value that is not finite; `None` if all are,
    /// or if the tensor does not hold floating-point numbers. Reads every value.
    pub fn first_non_finite_row(&self) -> Option<usize> {
        // All bits of the exponent set: infinity or NaN.
        let halves = |exponent: u16| {
            self.bytes
                .as_chunks()
                .0
                .iter()
                .position(|b| u16::from_le_bytes(*b) & exponent == exponent)
        };
        let first = match self.dtype {
            StoredType::F32 => self
                .bytes
                .as_chunks()
                .0
                .iter()
                .position(|b| !f32::from_le_bytes(*b).is_finite()),
            StoredType::Bf16 => halves(0x7f80),
            StoredType::F16 => halves(0x7c00),
            StoredType::U32 | StoredType::U8 | StoredType::Other(_) => None,
        }?;
        let row = self
            .shape
            .get(1..)
            .map_or(1, |inner| inner.iter().product::<usize>());
        Some(first / row)
    }

    /// The floating-point format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if weights cannot have the tensor's type.
    pub fn float(&self) -> Result<DType> {
        self.float_dtype().ok_or_else(|| self.not_a_float())
    }

    /// The refusal of codes that are not words.
    pub(super) fn not_words(&self) -> Error {
        Error::unsupported(format!("tensor `{}` in {}", self.name, self.dtype))
            .with_hint("codes are stored in U32 words")
    }

    /// The refusal of a tensor whose type no weight can have.
    pub(super) fn not_a_float(&self) -> Error {
        Error::unsupported(format!("tensor `{}` in {}", self.name, self.dtype))
            .with_hint("weights can be F32, BF16 or F16")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize]) -> StoredTensor {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        StoredTensor {
            name: "t".into(),
            dtype: StoredType::F32,
            shape: shape.to_vec(),
            bytes: Bytes::copied(&bytes),
        }
    }

    #[test]
    fn rows_and_parts_are_views() {
        let t = tensor(&[3, 2, 2]);
        let rows = t.rows(1..3);
        assert_eq!(
            (rows.shape.as_slice(), rows.to_f32().expect("floats")[0]),
            ([2, 2, 2].as_slice(), 4.0)
        );
        let part = t.part(2);
        assert_eq!(
            (part.shape.as_slice(), part.to_f32().expect("floats")),
            ([2, 2].as_slice(), vec![8.0, 9.0, 10.0, 11.0])
        );
        assert_eq!(part.rows(1..2).to_f32().expect("floats"), [10.0, 11.0]);
        assert_eq!(part.bytes.as_ptr(), t.bytes[32..].as_ptr(), "no copy");
        assert_eq!(tensor(&[0, 4]).rows(0..0).elements(), 0);
    }

    #[test]
    fn a_value_that_is_not_finite_is_found_by_row() {
        let mut t = tensor(&[3, 4]);
        assert_eq!(t.first_non_finite_row(), None);
        let mut bytes = t.bytes.to_vec();
        bytes[9 * 4..10 * 4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
        t.bytes = Bytes::copied(&bytes);
        assert_eq!(t.first_non_finite_row(), Some(2));
        for (dtype, bits, largest) in [
            (StoredType::Bf16, 0x7fc0_u16, 0x7f7f_u16),
            (StoredType::F16, 0xfc01, 0x7bff),
        ] {
            let bytes = [largest.to_le_bytes(), bits.to_le_bytes()].concat();
            let t = StoredTensor {
                name: "t".into(),
                dtype,
                shape: vec![2],
                bytes: Bytes::copied(&bytes),
            };
            assert_eq!(t.first_non_finite_row(), Some(1), "{dtype}");
        }
    }

    #[test]
    fn the_three_float_types_widen() {
        let of = |dtype, bytes: &[u8]| {
            StoredTensor {
                name: "t".into(),
                dtype,
                shape: vec![1],
                bytes: Bytes::copied(bytes),
            }
            .to_f32()
        };
        assert_eq!(
            of(StoredType::Bf16, &bf16::from_f32(-1.5).to_le_bytes()).expect("bf16"),
            [-1.5]
        );
        assert_eq!(
            of(StoredType::F16, &f16::from_f32(0.25).to_le_bytes()).expect("f16"),
            [0.25]
        );
        let error = of(StoredType::Other("F64"), &[0; 8])
            .expect_err("refused")
            .to_string();
        assert!(error.contains("F64") && error.contains("`t`"), "{error}");
    }
}
