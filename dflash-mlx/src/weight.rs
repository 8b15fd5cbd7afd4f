//! Matrices and experts in MLX's memory.

use dflash_core::checkpoint::{Experts, StoredTensor, WeightSource};
use dflash_core::{DType, Error, Result};
use half::{bf16, f16};
use mlx_rs::error::Exception;
use mlx_rs::ops::{dequantize, gather_mm, gather_qmm, quantized_matmul, stack};
use mlx_rs::{Array, Dtype};

use crate::array::{at, cast, int, ints};

/// What MLX computes on, which decides what its products can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The processor.
    Processor,
    /// An Apple GPU.
    Metal,
}

impl Place {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Processor => "cpu",
            Self::Metal => "metal",
        }
    }
}

/// A matrix `[outputs, inputs]`, or the matrices of all experts `[experts, outputs, inputs]`.
#[derive(Debug)]
pub struct MlxWeight {
    format: Format,
    outputs: usize,
    inputs: usize,
}

#[derive(Debug)]
enum Format {
    /// The numbers transposed, as products want them: the file's memory seen so on a GPU; copied so
    /// on the processor, whose library sums long rows much faster than it takes dot products.
    Plain { columns: Array },
    /// Codes of a few bits with a scale and a bias per group of consecutive inputs.
    Affine {
        codes: Array,
        scales: Array,
        biases: Array,
        bits: i32,
        group: i32,
    },
}

impl MlxWeight {
    /// A matrix for activations of a format. MLX multiplies arrays of one format, so a plain matrix of
    /// another one is converted once, here: to float32, or from float32 to nothing narrower.
    pub(crate) fn new(source: WeightSource, activations: DType, place: Place) -> Result<Self> {
        let (outputs, inputs) = (source.out(), source.inp());
        let format = match source {
            WeightSource::Plain(tensor) => {
                let rows = floats(&tensor)?;
                let kept = kept(rows.dtype(), activations);
                at(
                    "weight",
                    cast(&rows, kept).and_then(|rows| Format::plain(&rows, place)),
                )?
            }
            WeightSource::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                ..
            } => {
                let factor = |t: &StoredTensor| {
                    let numbers = floats(t)?;
                    let kept = match place {
                        // Sums are kept in the format of the factors: bf16 would lose percents.
                        Place::Processor => Dtype::Float32,
                        Place::Metal => kept(numbers.dtype(), activations),
                    };
                    at("weight", cast(&numbers, kept))
                };
                Format::Affine {
                    codes: words(&codes)?,
                    scales: factor(&scales)?,
                    biases: factor(&biases)?,
                    bits: i32::from(bits),
                    group: int(group),
                }
            }
            WeightSource::SmallFloat { codes, format, .. } => {
                return Err(Error::Unsupported {
                    what: format!("`{}`: weights in {}", codes.name, format.name()),
                    by: Some("the mlx backend".into()),
                    hint: Some("use `--backend candle --device cpu`, or a checkpoint in MLX's affine format".into()),
                });
            }
        };
        let weight = Self {
            format,
            outputs,
            inputs,
        };
        weight.settle()?;
        Ok(weight)
    }

    /// The matrices of all experts of one kind, which have one format and size.
    pub(crate) fn stacked(
        sources: Vec<WeightSource>,
        activations: DType,
        place: Place,
    ) -> Result<Self> {
        // On the processor MLX gathers matrices in float32 only.
        let activations = match place {
            Place::Processor => DType::F32,
            Place::Metal => activations,
        };
        let matrices = sources
            .into_iter()
            .map(|s| Self::new(s, activations, place))
            .collect::<Result<Vec<_>>>()?;
        let Some(first) = matrices.first() else {
            return Err(Error::shape("experts", "at least one", 0));
        };
        let (outputs, inputs) = (first.outputs, first.inputs);
        let stack = |pick: fn(&Format) -> [Option<&Array>; 3]| -> Result<Vec<Array>> {
            let mut stacked = Vec::new();
            for place in 0..3 {
                let all: Vec<&Array> = matrices
                    .iter()
                    .filter_map(|m| pick(&m.format)[place])
                    .collect();
                if !all.is_empty() {
                    stacked.push(at("experts", stack(&all, 0))?);
                }
            }
            Ok(stacked)
        };
        let misfit = || Error::shape("experts", "one format and size", "different ones");
        if matrices
            .iter()
            .any(|m| (m.outputs, m.inputs) != (outputs, inputs))
        {
            return Err(misfit());
        }
        let format = match &first.format {
            Format::Plain { .. } => {
                let stacked = stack(|f| match f {
                    Format::Plain { columns } => [Some(columns), None, None],
                    Format::Affine { .. } => [None; 3],
                })?;
                let [columns] = <[Array; 1]>::try_from(stacked).map_err(|_| misfit())?;
                Format::Plain { columns }
            }
            Format::Affine { bits, group, .. } => {
                let (bits, group) = (*bits, *group);
                let stacked = stack(|f| match f {
                    Format::Affine {
                        codes,
                        scales,
                        biases,
                        ..
                    } => [Some(codes), Some(scales), Some(biases)],
                    Format::Plain { .. } => [None; 3],
                })?;
                let [codes, scales, biases] =
                    <[Array; 3]>::try_from(stacked).map_err(|_| misfit())?;
                Format::Affine {
                    codes,
                    scales,
                    biases,
                    bits,
                    group,
                }
            }
        };
        let weight = Self {
            format,
            outputs,
            inputs,
        };
        weight.settle()?;
        Ok(weight)
    }

    /// Evaluates the matrix, so that a problem shows where it is loaded.
    fn settle(&self) -> Result<()> {
        let arrays: Vec<&Array> = match &self.format {
            Format::Plain { columns } => vec![columns],
            Format::Affine {
                codes,
                scales,
                biases,
                ..
            } => vec![codes, scales, biases],
        };
        at("weight", mlx_rs::transforms::eval(arrays))
    }

    /// Rows of the matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// `x · wᵀ`, in the format of `x`.
    pub(crate) fn product(&self, x: &Array) -> Result<Array, Exception> {
        let y = match &self.format {
            Format::Plain { columns } => cast(x, columns.dtype())?.matmul(columns)?,
            Format::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
            } => quantized_matmul(
                cast(x, scales.dtype())?,
                codes,
                scales,
                biases,
                true,
                *group,
                *bits,
            )?,
        };
        cast(&y, x.dtype())
    }

    /// `x · w[ids]ᵀ` for stacked matrices: each `[1, inputs]` of `x` with the matrices that `ids` names for it.
    pub(crate) fn product_of(&self, x: &Array, ids: &Array) -> Result<Array, Exception> {
        let y = match &self.format {
            Format::Plain { columns } => {
                gather_mm(cast(x, columns.dtype())?, columns, None, ids, false)?
            }
            Format::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
            } => gather_qmm(
                cast(x, scales.dtype())?,
                codes,
                scales,
                biases,
                None,
                ids,
                true,
                *group,
                *bits,
                false,
            )?,
        };
        cast(&y, x.dtype())
    }

    /// Rows of the matrix, `[n, inputs]`.
    pub(crate) fn rows(&self, ids: &Array) -> Result<Array, Exception> {
        match &self.format {
            Format::Plain { columns } => columns.take_axis(ids, 1)?.swap_axes(0, 1),
            Format::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
            } => dequantize(
                codes.take_axis(ids, 0)?,
                scales.take_axis(ids, 0)?,
                &biases.take_axis(ids, 0)?,
                *group,
                *bits,
            ),
        }
    }
}

impl Format {
    /// From rows `[outputs, inputs]`.
    fn plain(rows: &Array, place: Place) -> Result<Self, Exception> {
        let columns = rows.swap_axes(0, 1)?;
        let columns = match place {
            Place::Processor => columns.contiguous()?,
            Place::Metal => columns,
        };
        Ok(Self::Plain { columns })
    }
}

/// The format that numbers of a file keep in memory beside activations of another.
fn kept(stored: Dtype, activations: DType) -> Dtype {
    if stored == crate::array::native(activations) {
        stored
    } else {
        Dtype::Float32
    }
}

/// A tensor of a file with its own numbers.
fn floats(stored: &StoredTensor) -> Result<Array> {
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
fn words(stored: &StoredTensor) -> Result<Array> {
    let bytes: &[u8] = &stored.bytes;
    let (words, rest) = bytes.as_chunks();
    if !rest.is_empty() || words.len() != stored.shape.iter().product::<usize>() || words.is_empty()
    {
        return Err(misfit(stored, "words of 32 bits"));
    }
    let words: Vec<u32> = words.iter().map(|b| u32::from_le_bytes(*b)).collect();
    Ok(Array::from_slice(&words, &ints(&stored.shape)))
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

/// The gate, up and down matrices of a layer's experts.
#[derive(Debug)]
pub struct MlxExperts {
    pub(crate) gate: MlxWeight,
    pub(crate) up: MlxWeight,
    pub(crate) down: MlxWeight,
    pub(crate) count: usize,
}

impl MlxExperts {
    pub(crate) fn new(source: Experts, activations: DType, place: Place) -> Result<Self> {
        let count = source.gate.len();
        let stack = |list| MlxWeight::stacked(list, activations, place);
        let counts = [count, source.up.len(), source.down.len()];
        let experts = Self {
            gate: stack(source.gate)?,
            up: stack(source.up)?,
            down: stack(source.down)?,
            count,
        };
        let sizes = |w: &MlxWeight| (w.outputs, w.inputs);
        let (width, hidden) = sizes(&experts.gate);
        if counts != [count; 3]
            || sizes(&experts.up) != (width, hidden)
            || sizes(&experts.down) != (hidden, width)
        {
            let expected = "gate and up [experts, width, hidden], down [experts, hidden, width]";
            return Err(Error::shape(
                "experts",
                expected,
                format!("{counts:?} matrices"),
            ));
        }
        Ok(experts)
    }
}
