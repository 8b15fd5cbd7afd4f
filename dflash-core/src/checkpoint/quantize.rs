//! Quantizing a matrix in memory, with the codes, scales and biases that MLX's affine mode gives.
//!
//! It is done on the host, once, so that the same draft has the same codes on every backend and no
//! backend needs an operation for it.

use std::fmt;

use half::{bf16, f16};

use super::bytes::Bytes;
use super::tensor::{StoredTensor, StoredType};
use super::weight::WeightSource;
use crate::config::{QuantMode, QuantSpec};

/// Why a matrix cannot be quantized as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// Its rows are not a whole number of groups.
    Width {
        /// Numbers in a row.
        width: usize,
        /// Numbers that share a scale.
        group: usize,
    },
    /// A row has a number that is not finite, or numbers so far apart that their scale is not.
    NotFinite {
        /// The first such row.
        row: usize,
    },
    /// It does not hold a matrix of floating-point numbers.
    Format,
    /// The quantizer does not make this format.
    Spec,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Width { width, group } => {
                write!(f, "rows of {width} numbers are not whole groups of {group}")
            }
            Self::NotFinite { row } => write!(f, "row {row} has no finite scale"),
            Self::Format => f.write_str("it is not a matrix in f32, bf16 or f16"),
            Self::Spec => f.write_str("only affine codes of 2, 3, 4, 5, 6 or 8 bits are made"),
        }
    }
}

/// Quantizes a matrix `[out, in]` in F32, BF16 or F16. Scales and biases have its format.
///
/// Per group, with the end of its range that is further from zero as *edge* and the other as *far*:
/// `scale = (far - edge) / (2^bits - 1)`, then changed so that the edge is a whole number of scales
/// and has no error; `bias = edge`; `code = round((w - bias) / scale)`, ties to even, all in float32.
/// If the edge is nearer to zero than half a scale, the bias is 0.
///
/// # Errors
/// [`Unfit`] says why it cannot be done.
pub fn quantize(matrix: &StoredTensor, spec: QuantSpec) -> Result<WeightSource, Unfit> {
    let QuantSpec { mode, bits, group } = spec;
    if mode != QuantMode::Affine || !matches!(bits, 2..=6 | 8) {
        return Err(Unfit::Spec);
    }
    let (Some(_), &[out, inp]) = (matrix.float_dtype(), matrix.shape.as_slice()) else {
        return Err(Unfit::Format);
    };
    if group == 0
        || inp == 0
        || !inp.is_multiple_of(group)
        || !(inp * usize::from(bits)).is_multiple_of(32)
    {
        return Err(Unfit::Width { width: inp, group });
    }
    let mut codes = Codes::new(bits, out * inp);
    let (mut scales, mut biases) = (Floats::like(matrix.dtype), Floats::like(matrix.dtype));
    let mut buffer = vec![0.0; group];
    for row in 0..out {
        let values = matrix
            .rows(row..row + 1)
            .to_f32()
            .map_err(|_| Unfit::Format)?;
        for values in values.chunks_exact(group) {
            let Group { scale, bias } = Group::of(values, codes.levels);
            let finite = scales.push(scale) & biases.push(bias);
            if !finite || !values.iter().all(|v| v.is_finite()) {
                return Err(Unfit::NotFinite { row });
            }
            for (code, value) in buffer.iter_mut().zip(values) {
                // Clamped first, so that adding and taking away 2^23 rounds to a whole number, ties to even: float32 has no
                // fractions there. A call to the mathematical library would take most of the time.
                let code_of = ((value - bias) / scale).max(0.0).min(codes.levels);
                *code = code_of + WHOLE - WHOLE;
            }
            codes.extend(&buffer);
        }
    }
    let tensor = |name: &str, dtype, columns: usize, bytes: &[u8]| StoredTensor {
        name: name.into(),
        dtype,
        shape: vec![out, columns],
        bytes: Bytes::copied(bytes),
    };
    let module = matrix.name.trim_end_matches(".weight");
    let per_group = inp / group;
    Ok(WeightSource::Affine {
        codes: tensor(
            &matrix.name,
            StoredType::U32,
            inp * usize::from(bits) / 32,
            &codes.bytes,
        ),
        scales: tensor(
            &format!("{module}.scales"),
            matrix.dtype,
            per_group,
            &scales.bytes,
        ),
        biases: tensor(
            &format!("{module}.biases"),
            matrix.dtype,
            per_group,
            &biases.bytes,
        ),
        bits,
        group,
        out,
        inp,
    })
}

/// 2^23.
const WHOLE: f32 = 8_388_608.0;
/// The smallest scale, so that a group of equal numbers has one.
const SMALLEST: f32 = 1e-7;

/// Scale and bias of a group of numbers.
struct Group {
    scale: f32,
    bias: f32,
}

impl Group {
    fn of(values: &[f32], levels: f32) -> Self {
        let least = values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let size = ((most - least) / levels).max(SMALLEST);
        let (scale, edge) = if least.abs() > most.abs() {
            (size, least)
        } else {
            (-size, most)
        };
        let steps = (edge / scale).round_ties_even();
        if steps == 0.0 {
            return Self { scale, bias: 0.0 };
        }
        Self {
            scale: edge / steps,
            bias: edge,
        }
    }
}

/// Codes in one stream, lowest bit first.
struct Codes {
    bits: u32,
    levels: f32,
    bytes: Vec<u8>,
    pending: u32,
    filled: u32,
}

impl Codes {
    fn new(bits: u8, count: usize) -> Self {
        Self {
            bits: u32::from(bits),
            levels: f32::from((1u16 << bits) - 1),
            bytes: Vec::with_capacity(count * usize::from(bits) / 8),
            pending: 0,
            filled: 0,
        }
    }

    /// Adds codes, which are whole numbers from 0 to `levels`.
    fn extend(&mut self, codes: &[f32]) {
        for code in codes {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to the codes that exist"
            )]
            let code = *code as u32;
            self.pending |= code << self.filled;
            self.filled += self.bits;
            while self.filled >= 8 {
                let [first, ..] = self.pending.to_le_bytes();
                self.bytes.push(first);
                self.pending >>= 8;
                self.filled -= 8;
            }
        }
    }
}

/// Numbers in a file's format.
struct Floats {
    dtype: StoredType,
    bytes: Vec<u8>,
}

impl Floats {
    const fn like(dtype: StoredType) -> Self {
        Self {
            dtype,
            bytes: Vec::new(),
        }
    }

    /// Adds a number, rounded to the format; false if it is not finite there.
    fn push(&mut self, value: f32) -> bool {
        match self.dtype {
            StoredType::Bf16 => {
                let value = bf16::from_f32(value);
                self.bytes.extend(value.to_le_bytes());
                value.is_finite()
            }
            StoredType::F16 => {
                let value = f16::from_f32(value);
                self.bytes.extend(value.to_le_bytes());
                value.is_finite()
            }
            _ => {
                self.bytes.extend(value.to_le_bytes());
                value.is_finite()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn affine(bits: u8, group: usize) -> QuantSpec {
        QuantSpec {
            mode: QuantMode::Affine,
            bits,
            group,
        }
    }

    fn matrix(shape: &[usize], values: &[f32]) -> StoredTensor {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        StoredTensor {
            name: "m.weight".into(),
            dtype: StoredType::F32,
            shape: shape.to_vec(),
            bytes: Bytes::copied(&bytes),
        }
    }

    /// Codes, scales and biases of a result.
    fn parts(source: WeightSource) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
        let WeightSource::Affine {
            codes,
            scales,
            biases,
            ..
        } = source
        else {
            panic!("an affine weight");
        };
        assert_eq!(codes.dtype, StoredType::U32);
        assert_eq!(
            (
                codes.name.as_str(),
                scales.name.as_str(),
                biases.name.as_str()
            ),
            ("m.weight", "m.scales", "m.biases")
        );
        let floats = |t: StoredTensor| t.to_f32().expect("floats");
        (codes.bytes.to_vec(), floats(scales), floats(biases))
    }

    /// Groups worked out by hand: the edge has no error, ties go to even codes, equal numbers and zeros have a scale.
    #[test]
    fn groups_by_hand() {
        // -3, -2, -1, 0 in turn: edge -3 = 3 scales of 1 below zero.
        let values: Vec<f32> = (0..32u8).map(|i| f32::from(i % 4) - 3.0).collect();
        let (codes, scales, biases) =
            parts(quantize(&matrix(&[1, 32], &values), affine(2, 32)).expect("fits"));
        assert_eq!((scales, biases), (vec![-1.0 * -1.0], vec![-3.0]));
        assert_eq!(codes, [0b11_10_01_00; 8]);

        // The mirror image has a negative scale; 1.5 and 0.5 lie between two codes.
        let mut values = vec![3.0; 32];
        values[..4].copy_from_slice(&[0.0, 1.5, 0.5, 2.5]);
        let (codes, scales, biases) =
            parts(quantize(&matrix(&[1, 32], &values), affine(2, 32)).expect("fits"));
        assert_eq!((scales, biases), (vec![-1.0], vec![3.0]));
        // 3 -> 0; 0 -> 3; 1.5 -> 1.5 -> 2; 0.5 -> 2.5 -> 2; 2.5 -> 0.5 -> 0.
        assert_eq!(codes[..2], [0b00_10_10_11, 0]);

        let (codes, scales, biases) =
            parts(quantize(&matrix(&[1, 32], &[0.0; 32]), affine(8, 32)).expect("fits"));
        assert_eq!((scales, biases), (vec![-SMALLEST], vec![0.0]));
        assert_eq!(codes, [0; 32]);

        let (codes, scales, biases) =
            parts(quantize(&matrix(&[1, 32], &[0.75; 32]), affine(4, 32)).expect("fits"));
        assert_eq!((codes, biases), (vec![0; 16], vec![0.75]));
        assert!(scales[0].abs() > 9e-8 && scales[0].abs() < 1.1e-7);
    }

    /// A number is less than a scale away, and wider codes are closer.
    #[test]
    fn errors_are_bounded_by_the_scale() {
        let values: Vec<f32> = (0..128 * 6u16)
            .map(|i| (f32::from(i) * 0.731).sin() * 0.2 + 0.05)
            .collect();
        let tensor = matrix(&[6, 128], &values);
        for group in [32, 64, 128] {
            let mut last = f32::INFINITY;
            for bits in [2u8, 3, 4, 5, 6, 8] {
                let (codes, scales, biases) =
                    parts(quantize(&tensor, affine(bits, group)).expect("fits"));
                let mut worst = 0.0f32;
                for (i, value) in values.iter().enumerate() {
                    let (scale, bias) = (scales[i / group], biases[i / group]);
                    let at = i * usize::from(bits);
                    let code: u32 = (0..usize::from(bits))
                        .map(|b| u32::from(codes[(at + b) / 8] >> ((at + b) % 8) & 1) << b)
                        .sum();
                    let off = (code as f32 * scale + bias - value).abs();
                    worst = worst.max(off);
                    // The far end may lie past the last code after the edge was made exact.
                    assert!(off <= scale.abs(), "{bits} bits: {off} of {scale}");
                }
                assert!(worst < last, "{bits} bits: {worst}, fewer: {last}");
                last = worst;
            }
        }
    }

    #[test]
    fn what_cannot_be_quantized_is_told_apart() {
        let mut values = vec![0.25; 3 * 96];
        let fails = |t: &StoredTensor, spec| quantize(t, spec).expect_err("unfit");
        let good = matrix(&[3, 96], &values);
        assert!(quantize(&good, affine(4, 32)).is_ok());
        let width = Unfit::Width {
            width: 96,
            group: 64,
        };
        assert_eq!(fails(&good, affine(4, 64)), width);
        assert!(width.to_string().contains("96") && width.to_string().contains("64"));
        for bits in [0, 1, 7, 9] {
            assert_eq!(fails(&good, affine(bits, 32)), Unfit::Spec);
        }
        let mxfp4 = QuantSpec {
            mode: QuantMode::Mxfp4,
            bits: 4,
            group: 32,
        };
        assert_eq!(fails(&good, mxfp4), Unfit::Spec);
        assert_eq!(
            fails(&matrix(&[96], &[0.0; 96]), affine(4, 32)),
            Unfit::Format
        );
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            values[100] = bad;
            assert_eq!(
                fails(&matrix(&[3, 96], &values), affine(4, 32)),
                Unfit::NotFinite { row: 1 },
                "{bad}"
            );
        }
        values[100] = f32::MAX;
        values[101] = f32::MIN;
        assert_eq!(
            fails(&matrix(&[3, 96], &values), affine(4, 32)),
            Unfit::NotFinite { row: 1 }
        );
    }
}
