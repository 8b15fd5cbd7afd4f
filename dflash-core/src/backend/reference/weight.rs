//! Matrices in their file's format, and products with them.

use super::layers::silu;
use super::tensor::{RefTensor, dot};
use crate::backend::MoeParams;
use crate::checkpoint::{Bytes, Experts, StoredTensor, WeightSource};
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
}

impl RefWeight {
    pub(super) fn load(source: &WeightSource) -> Result<Self> {
        let (outputs, inputs) = match source {
            WeightSource::Plain(tensor) => match tensor.shape.as_slice() {
                &[outputs, inputs] => (outputs, inputs),
                other => {
                    return Err(Error::shape(
                        format!("weight `{}`", tensor.name),
                        "[out, in]",
                        format!("{other:?}"),
                    ));
                }
            },
            WeightSource::Affine { out, inp, .. } => (*out, *inp),
        };
        let numbers = match source {
            WeightSource::Plain(tensor) => {
                let dtype = tensor.float_dtype().ok_or_else(|| unreadable(tensor))?;
                expect_bytes(tensor, outputs * inputs * dtype.size())?;
                Numbers::Plain {
                    dtype,
                    bytes: tensor.bytes.clone(),
                }
            }
            WeightSource::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                ..
            } => {
                let (bits, group) = (usize::from(*bits), *group);
                if !(1..=8).contains(&bits)
                    || group == 0
                    || inputs % group != 0
                    || inputs * bits % 32 != 0
                {
                    let found = format!("{inputs} columns of {bits} bits in groups of {group}");
                    return Err(Error::shape(
                        format!("weight `{}`", codes.name),
                        "1 to 8 bits, whole groups and whole words in a row",
                        found,
                    ));
                }
                expect_bytes(codes, outputs * inputs * bits / 8)?;
                let groups = |tensor: &StoredTensor| {
                    let dtype = tensor.float_dtype().ok_or_else(|| unreadable(tensor))?;
                    expect_bytes(tensor, outputs * (inputs / group) * dtype.size())?;
                    tensor.to_f32()
                };
                Numbers::Affine {
                    bits,
                    group,
                    codes: codes.bytes.clone(),
                    scales: groups(scales)?,
                    biases: groups(biases)?,
                }
            }
        };
        Ok(Self {
            outputs,
            inputs,
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
    fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
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

/// The matrices of a layer's experts.
#[derive(Debug, Clone)]
pub struct RefExperts {
    /// Gate, up and down of each expert.
    experts: Vec<[RefWeight; 3]>,
}

impl RefExperts {
    pub(super) fn load(source: &Experts) -> Result<Self> {
        let Experts { gate, up, down } = source;
        if gate.is_empty() || gate.len() != up.len() || gate.len() != down.len() {
            let found = format!(
                "{} gates, {} ups, {} downs",
                gate.len(),
                up.len(),
                down.len()
            );
            return Err(Error::shape(
                "experts",
                "as many of each matrix, at least one",
                found,
            ));
        }
        let experts: Vec<_> = (gate.iter().zip(up).zip(down))
            .map(|((gate, up), down)| {
                Ok([
                    RefWeight::load(gate)?,
                    RefWeight::load(up)?,
                    RefWeight::load(down)?,
                ])
            })
            .collect::<Result<_>>()?;
        let sizes = |[gate, up, down]: &[RefWeight; 3]| {
            [
                gate.outputs,
                gate.inputs,
                up.outputs,
                up.inputs,
                down.outputs,
                down.inputs,
            ]
        };
        let [width, inputs, ..] = sizes(&experts[0]);
        let expected = [width, inputs, width, inputs, experts[0][2].outputs, width];
        match experts.iter().map(sizes).find(|found| *found != expected) {
            None => Ok(Self { experts }),
            Some(found) => Err(Error::shape(
                "experts: sizes of gate, up and down",
                format!("{expected:?}"),
                format!("{found:?}"),
            )),
        }
    }

    pub(super) fn run(
        &self,
        x: &RefTensor,
        logits: &RefTensor,
        params: &MoeParams,
    ) -> Result<RefTensor> {
        let &[1, rows, width] = x.shape() else {
            return Err(x.misfit("moe", "[1, rows, in]"));
        };
        let count = self.experts.len();
        logits.expect("moe: router logits", &[1, rows, count])?;
        if params.top_k == 0 || params.top_k > count {
            return Err(Error::shape(
                "moe: experts per row",
                format!("1 to {count}"),
                params.top_k,
            ));
        }
        let [gate, _, down] = &self.experts[0];
        if gate.inputs != width {
            return Err(x.misfit("moe", format!("[1, rows, {}]", gate.inputs)));
        }
        let outputs = down.outputs;
        let mut data = vec![0.0; rows * outputs];
        for (row, out) in data.chunks_exact_mut(outputs.max(1)).enumerate() {
            let x = &x.data()[row * width..][..width];
            for (expert, probability) in route(&logits.data()[row * count..][..count], params) {
                let [gate, up, down] = &self.experts[expert];
                let hidden: Vec<f32> = gate
                    .product(x, 1)
                    .iter()
                    .zip(up.product(x, 1))
                    .map(|(&g, u)| silu(g) * u)
                    .collect();
                out.iter_mut()
                    .zip(down.product(&hidden, 1))
                    .for_each(|(o, y)| *o += probability * y);
            }
        }
        RefTensor::new("moe", data, &[1, rows, outputs])
    }
}

/// A row's experts and their factors, best first, equals by lowest index.
fn route(logits: &[f32], params: &MoeParams) -> Vec<(usize, f32)> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|l| (l - best).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut chosen: Vec<(usize, f32)> = weights.iter().map(|w| w / total).enumerate().collect();
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
    chosen.truncate(params.top_k);
    if params.normalize {
        let sum: f32 = chosen.iter().map(|c| c.1).sum();
        chosen.iter_mut().for_each(|c| c.1 /= sum);
    }
    chosen
}

fn unreadable(tensor: &StoredTensor) -> Error {
    Error::Unsupported {
        what: format!("tensor `{}` in {}", tensor.name, tensor.dtype),
        by: Some("the reference backend".into()),
        hint: Some("weights can be F32, BF16 or F16".into()),
    }
}

fn expect_bytes(tensor: &StoredTensor, expected: usize) -> Result<()> {
    if tensor.bytes.len() == expected {
        return Ok(());
    }
    Err(Error::shape(
        format!("bytes of `{}`", tensor.name),
        expected,
        tensor.bytes.len(),
    ))
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
