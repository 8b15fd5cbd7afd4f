//! Matrices in their file's format, and products with them.

use super::layers::silu;
use super::tensor::{RefTensor, dot};
use crate::checkpoint::{Bytes, SmallFloat, WeightSource};
use crate::{DType, Error, Result};

/// A matrix `[out, in]` over its file's bytes.
#[derive(Debug, Clone)]
pub struct RefWeight {
    outputs: usize,
    inputs: usize,
    numbers: Numbers,
}

#[derive(Debug, Clone)]
enum Numbers {
    /// Floats, little-endian, row-major.
    Plain { dtype: DType, bytes: Bytes },
    /// Codes of `bits` bits in one stream per row, lowest bit first; a number is `code * scale + bias` of its group.
    Affine {
        bits: usize,
        group: usize,
        codes: Bytes,
        scales: Vec<f32>,
        biases: Vec<f32>,
    },
    /// Codes in streams as above; a number is what its code stands for times the scale of its group.
    SmallFloat {
        format: SmallFloat,
        codes: Bytes,
        scales: Vec<f32>,
    },
}

impl RefWeight {
    pub(super) fn load(source: &WeightSource) -> Result<Self> {
        source.check()?;
        let numbers = match source {
            WeightSource::Plain(tensor) => Numbers::Plain {
                dtype: tensor.float()?,
                bytes: tensor.bytes.clone(),
            },
            WeightSource::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                ..
            } => Numbers::Affine {
                bits: usize::from(*bits),
                group: *group,
                codes: codes.bytes.clone(),
                scales: scales.to_f32()?,
                biases: biases.to_f32()?,
            },
            WeightSource::SmallFloat {
                codes,
                scales,
                format,
                ..
            } => Numbers::SmallFloat {
                format: *format,
                codes: codes.bytes.clone(),
                scales: scales.bytes.iter().map(|&s| format.scale(s)).collect(),
            },
        };
        Ok(Self {
            outputs: source.out(),
            inputs: source.inp(),
            numbers,
        })
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Widens a row into `out`.
    fn widen(&self, row: usize, out: &mut [f32]) {
        match &self.numbers {
            Numbers::Plain { dtype, bytes } => {
                let width = self.inputs * dtype.size();
                widen(*dtype, &bytes[row * width..][..width], out);
            }
            Numbers::Affine {
                bits,
                group,
                codes,
                scales,
                biases,
            } => {
                let width = self.inputs * bits / 8;
                let codes = &codes[row * width..][..width];
                let first = row * (self.inputs / group);
                for (column, out) in out.iter_mut().enumerate() {
                    let (scale, bias) = (
                        scales[first + column / group],
                        biases[first + column / group],
                    );
                    *out = f32::from(code(codes, column * bits, *bits)) * scale + bias;
                }
            }
            Numbers::SmallFloat {
                format,
                codes,
                scales,
            } => {
                let (bits, group) = (format.bits(), format.group());
                let width = self.inputs * bits / 8;
                let codes = &codes[row * width..][..width];
                let first = row * (self.inputs / group);
                for (column, out) in out.iter_mut().enumerate() {
                    let number = format.number(code(codes, column * bits, bits));
                    *out = number * scales[first + column / group];
                }
            }
        }
    }

    /// Rows by id, one after another.
    pub(super) fn gather(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut rows = vec![0.0; ids.len() * self.inputs];
        for (&id, out) in ids.iter().zip(rows.chunks_exact_mut(self.inputs.max(1))) {
            if id as usize >= self.outputs {
                return Err(Error::shape(
                    "token id",
                    format!("less than {} rows", self.outputs),
                    id,
                ));
            }
            self.widen(id as usize, out);
        }
        Ok(rows)
    }

    /// `x @ selfᵀ (+ bias)`.
    pub(super) fn linear(&self, x: &RefTensor, bias: Option<&RefTensor>) -> Result<RefTensor> {
        let &[1, rows, width] = x.shape() else {
            return Err(x.misfit("linear", "[1, rows, in]"));
        };
        if width != self.inputs {
            return Err(x.misfit("linear", format!("[1, rows, {}]", self.inputs)));
        }
        if let Some(bias) = bias {
            bias.expect("linear: bias", &[self.outputs])?;
        }
        let mut data = self.product(x.data(), rows);
        if let Some(bias) = bias {
            for row in data.chunks_exact_mut(self.outputs.max(1)) {
                row.iter_mut().zip(bias.data()).for_each(|(y, b)| *y += b);
            }
        }
        RefTensor::new("linear", data, &[1, rows, self.outputs])
    }

    /// `x @ selfᵀ` for rows `x` of this matrix's width.
    pub(super) fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let mut data = vec![0.0; rows * self.outputs];
        let mut wide = vec![0.0; self.inputs];
        for output in 0..self.outputs {
            self.widen(output, &mut wide);
            for row in 0..rows {
                data[row * self.outputs + output] =
                    dot(&wide, &x[row * self.inputs..][..self.inputs]);
            }
        }
        data
    }
}

/// `silu(gate(x)) * up(x)`.
pub(super) fn swiglu(gate: &RefWeight, up: &RefWeight, x: &RefTensor) -> Result<RefTensor> {
    gate.linear(x, None)?
        .zip("swiglu", &up.linear(x, None)?, |g, u| silu(g) * u)
}

/// Widens little-endian floats.
fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            let (numbers, _) = bytes.as_chunks::<4>();
            out.iter_mut()
                .zip(numbers)
                .for_each(|(o, b)| *o = f32::from_le_bytes(*b));
        }
        DType::Bf16 => {
            let (numbers, _) = bytes.as_chunks::<2>();
            out.iter_mut()
                .zip(numbers)
                .for_each(|(o, b)| *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16));
        }
        DType::F16 => {
            let (numbers, _) = bytes.as_chunks::<2>();
            out.iter_mut()
                .zip(numbers)
                .for_each(|(o, b)| *o = half::f16::from_le_bytes(*b).to_f32());
        }
    }
}

/// The code of `bits` (at most 8) bits at a bit of a stream; it spans two bytes at most.
fn code(stream: &[u8], bit: usize, bits: usize) -> u8 {
    let (byte, shift) = (bit / 8, bit % 8);
    let next = stream.get(byte + 1).copied().unwrap_or(0);
    let mask = (1u16 << bits) - 1;
    #[expect(clippy::cast_possible_truncation, reason = "masked to eight bits")]
    let code = (u16::from_le_bytes([stream[byte], next]) >> shift & mask) as u8;
    code
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checkpoint::{StoredTensor, StoredType};

    pub(in super::super) fn stored(
        dtype: StoredType,
        shape: &[usize],
        bytes: &[u8],
    ) -> StoredTensor {
        StoredTensor {
            name: "w".into(),
            dtype,
            shape: shape.to_vec(),
            bytes: Bytes::copied(bytes),
        }
    }

    pub(in super::super) fn floats(shape: &[usize], numbers: &[f32]) -> StoredTensor {
        stored(
            StoredType::F32,
            shape,
            &numbers
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect::<Vec<_>>(),
        )
    }

    pub(in super::super) fn matrix(outputs: usize, inputs: usize, numbers: &[f32]) -> WeightSource {
        WeightSource::Plain(floats(&[outputs, inputs], numbers))
    }

    pub(in super::super) fn tensor(numbers: &[f32], shape: &[usize]) -> RefTensor {
        RefTensor::new("given", numbers.to_vec(), shape).expect("as many numbers")
    }

    #[test]
    fn product_by_hand() {
        let weight =
            RefWeight::load(&matrix(2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).expect("a matrix");
        let x = tensor(&[1.0, 0.0, -1.0, 2.0, 2.0, 2.0], &[1, 2, 3]);
        assert_eq!(
            weight.linear(&x, None).expect("fits").data(),
            [-2.0, -2.0, 12.0, 30.0]
        );
        let bias = tensor(&[0.5, -0.5], &[2]);
        assert_eq!(
            weight.linear(&x, Some(&bias)).expect("fits").data(),
            [-1.5, -2.5, 12.5, 29.5]
        );
        assert!(weight.linear(&tensor(&[0.0; 4], &[1, 1, 4]), None).is_err());
        assert!(weight.linear(&x, Some(&tensor(&[0.0; 3], &[3]))).is_err());
    }

    #[test]
    fn narrow_floats_widen_exactly() {
        let halves = [0x3C00u16, 0xC000, 0x7C00, 0x0001]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<_>>();
        let row = |dtype| {
            RefWeight::load(&WeightSource::Plain(stored(dtype, &[1, 4], &halves)))
                .expect("a matrix")
                .gather(&[0])
                .expect("a row")
        };
        assert_eq!(
            row(StoredType::F16),
            [1.0, -2.0, f32::INFINITY, 2f32.powi(-24)]
        );
        assert_eq!(
            row(StoredType::Bf16),
            [
                0.007_812_5,
                -2.0,
                f32::from_bits(0x7C00_0000),
                f32::from_bits(0x0001_0000)
            ]
        );
    }

    /// Codes written bit by bit, read back for every width.
    #[test]
    fn packed_codes_of_every_width() {
        for bits in [1u8, 2, 3, 4, 5, 6, 8] {
            let (outputs, inputs, group) = (3, 64, 32);
            let mask = u8::MAX >> (8 - bits);
            let codes: Vec<u8> = (0..outputs * inputs)
                .map(|i| u8::try_from(i * 37 % 251).expect("below 251") & mask)
                .collect();
            let width = inputs * usize::from(bits) / 8;
            let mut bytes = vec![0u8; outputs * width];
            for (index, code) in codes.iter().enumerate() {
                for bit in 0..usize::from(bits) {
                    let at = index % inputs * usize::from(bits) + bit;
                    bytes[index / inputs * width + at / 8] |= (code >> bit & 1) << (at % 8);
                }
            }
            let groups: Vec<f32> = (0..6u8).map(|g| 0.5 - f32::from(g) * 0.25).collect();
            let biases: Vec<f32> = groups.iter().map(|g| 3.0 * g - 1.0).collect();
            let source = WeightSource::Affine {
                codes: stored(StoredType::U32, &[outputs, width / 4], &bytes),
                scales: floats(&[outputs, 2], &groups),
                biases: floats(&[outputs, 2], &biases),
                bits,
                group,
                out: outputs,
                inp: inputs,
            };
            let weight = RefWeight::load(&source).expect("a packed matrix");
            let rows = weight.gather(&[0, 1, 2]).expect("rows");
            for (index, (code, found)) in codes.iter().zip(&rows).enumerate() {
                assert_eq!(
                    *found,
                    f32::from(*code) * groups[index / group] + biases[index / group],
                    "{bits} bits, number {index}"
                );
            }
            let x = tensor(&[0.25; 64], &[1, 1, 64]);
            let expected: Vec<f32> = rows.chunks(64).map(|row| dot(row, x.data())).collect();
            assert_eq!(weight.linear(&x, None).expect("fits").data(), expected);
        }
    }

    /// Codes 0, 1, 2, … against scales written by hand.
    #[test]
    fn small_floats_by_hand() {
        let row = |format, bytes: Vec<u8>, scales: &[u8]| {
            let inp = bytes.len() * 8 / SmallFloat::bits(format);
            RefWeight::load(&WeightSource::SmallFloat {
                codes: stored(StoredType::U32, &[1, bytes.len() / 4], &bytes),
                scales: stored(StoredType::U8, &[1, scales.len()], scales),
                format,
                out: 1,
                inp,
            })
            .expect("a packed matrix")
            .gather(&[0])
            .expect("a row")
        };
        // The lower half of a byte comes first: 0, 1, 2, … 15, twice.
        let ascending: Vec<u8> = (0..16u8)
            .map(|i| (i * 2 % 16) | ((i * 2 % 16 + 1) << 4))
            .collect();
        let values = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let signed: Vec<f32> = values.iter().copied().chain(values.map(|v| -v)).collect();
        let scaled = |scale: f32| signed.iter().map(move |v| v * scale);
        // 2¹ for all 32.
        assert_eq!(
            row(SmallFloat::Mxfp4, ascending.clone(), &[128]),
            scaled(2.0).chain(scaled(2.0)).collect::<Vec<_>>()
        );
        // 1.5 for the first sixteen, -2⁻⁶ for the others.
        assert_eq!(
            row(SmallFloat::Nvfp4, ascending, &[0x3c, 0x88]),
            scaled(1.5).chain(scaled(-0.015_625)).collect::<Vec<_>>()
        );
        let mut codes = vec![0u8; 32];
        codes[..6].copy_from_slice(&[0x38, 0xb8, 0x01, 0x7e, 0x44, 0x80]);
        let mut expected = vec![0.0f32; 32];
        expected[..5].copy_from_slice(&[0.25, -0.25, 0.000_488_281_25, 112.0, 0.75]);
        assert_eq!(row(SmallFloat::Mxfp8, codes, &[125]), expected);
    }

    #[test]
    fn unreadable_weights_are_refused() {
        let short = stored(StoredType::F32, &[2, 2], &[0; 12]);
        assert!(matches!(
            RefWeight::load(&WeightSource::Plain(short)),
            Err(Error::Shape { .. })
        ));
        assert!(matches!(
            RefWeight::load(&WeightSource::Plain(floats(&[4], &[0.0; 4]))),
            Err(Error::Shape { .. })
        ));
        let double = stored(StoredType::Other("F64"), &[1, 1], &[0; 8]);
        let error = RefWeight::load(&WeightSource::Plain(double))
            .expect_err("refused")
            .to_string();
        assert!(error.contains("F64") && error.contains("`w`"), "{error}");
        let packed = |bits, group| WeightSource::Affine {
            codes: stored(StoredType::U32, &[1, 4], &[0; 16]),
            scales: floats(&[1, 1], &[0.0]),
            biases: floats(&[1, 1], &[0.0]),
            bits,
            group,
            out: 1,
            inp: 32,
        };
        assert!(RefWeight::load(&packed(4, 32)).is_ok());
        for (bits, group) in [(9, 32), (0, 32), (4, 0), (4, 5), (3, 32), (4, 16)] {
            assert!(
                matches!(
                    RefWeight::load(&packed(bits, group)),
                    Err(Error::Shape { .. })
                ),
                "{bits} bits in groups of {group}"
            );
        }
        let small = |words: usize, scales: StoredType, inp| WeightSource::SmallFloat {
            codes: stored(StoredType::U32, &[1, words], &vec![0; 4 * words]),
            scales: stored(scales, &[1, 2], &[0; 2]),
            format: SmallFloat::Nvfp4,
            out: 1,
            inp,
        };
        assert!(RefWeight::load(&small(4, StoredType::U8, 32)).is_ok());
        for source in [small(2, StoredType::U8, 16), small(5, StoredType::U8, 32)] {
            assert!(matches!(RefWeight::load(&source), Err(Error::Shape { .. })));
        }
        let error = RefWeight::load(&small(4, StoredType::Bf16, 32)).expect_err("refused");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let weight = RefWeight::load(&matrix(2, 1, &[0.0, 1.0])).expect("a matrix");
        assert!(matches!(weight.gather(&[1, 2]), Err(Error::Shape { .. })));
    }
}
