//! Matrices and experts in MLX's memory.

use dflash_core::checkpoint::{Experts, StoredTensor, WeightSource};
use dflash_core::metal::AffineShape;
use dflash_core::{DType, Error, Result};
use mlx_rs::error::Exception;
use mlx_rs::ops::{dequantize, gather_mm, gather_qmm, quantized_matmul, stack};
use mlx_rs::{Array, Dtype};

use crate::array::{at, cast, int, size};
use crate::kernels::metal::Kernels;
use crate::kernels::small_float::SmallFloats;
use crate::stored::{bytes, floats, words};

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
    /// Codes that are small floats, with a scale per group.
    SmallFloat(SmallFloats, Place),
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
            WeightSource::SmallFloat {
                codes,
                scales,
                format,
                ..
            } => {
                let (codes, scales) = (words(&codes)?, bytes(&scales)?);
                Format::SmallFloat(
                    SmallFloats {
                        codes,
                        scales,
                        format,
                    },
                    place,
                )
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
        let misfit = || Error::shape("experts", "one format and size", "different ones");
        let alike = |m: &Self| {
            (m.outputs, m.inputs) == (outputs, inputs) && m.format.is_like(&first.format)
        };
        if !matrices.iter().all(alike) {
            return Err(misfit());
        }
        let lists: Vec<Vec<&Array>> = matrices.iter().map(|m| m.format.arrays()).collect();
        let stacked = (0..lists[0].len())
            .map(|i| {
                at(
                    "experts",
                    stack(&lists.iter().map(|l| l[i]).collect::<Vec<_>>(), 0),
                )
            })
            .collect::<Result<Vec<_>>>()?;
        let format = first.format.with(stacked);
        let weight = Self {
            format: format.ok_or_else(misfit)?,
            outputs,
            inputs,
        };
        weight.settle()?;
        Ok(weight)
    }

    /// Evaluates the matrix, so that a problem shows where it is loaded.
    fn settle(&self) -> Result<()> {
        at("weight", mlx_rs::transforms::eval(self.format.arrays()))
    }

    /// Rows of the matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// `x · wᵀ` of a few rows by a kernel of our own, if it takes them.
    pub(crate) fn product_by(
        &self,
        kernels: &Kernels,
        x: &Array,
    ) -> Result<Option<Array>, Exception> {
        let Format::Affine {
            codes,
            scales,
            biases,
            bits,
            group,
        } = &self.format
        else {
            return Ok(None);
        };
        let count = |n: i32| usize::try_from(n).unwrap_or(0);
        let shape = AffineShape {
            rows: size(x, 1),
            inputs: self.inputs,
            outputs: self.outputs,
            bits: count(*bits),
            group: count(*group),
        };
        kernels.affine_rows(&shape, x, [codes, scales, biases])
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
            Format::SmallFloat(floats, place) => floats.product(&summed(x, *place)?)?,
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
            Format::SmallFloat(floats, place) => floats.product_of(&summed(x, *place)?, ids)?,
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
            Format::SmallFloat(floats, _) => floats.rows(ids),
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

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Plain { columns } => vec![columns],
            Self::Affine {
                codes,
                scales,
                biases,
                ..
            } => vec![codes, scales, biases],
            Self::SmallFloat(floats, _) => vec![&floats.codes, &floats.scales],
        }
    }

    /// The same format of other arrays, if they are as many.
    fn with(&self, arrays: Vec<Array>) -> Option<Self> {
        let mut arrays = arrays.into_iter();
        let mut next = || arrays.next();
        let format = match self {
            Self::Plain { .. } => Self::Plain { columns: next()? },
            Self::Affine { bits, group, .. } => Self::Affine {
                codes: next()?,
                scales: next()?,
                biases: next()?,
                bits: *bits,
                group: *group,
            },
            Self::SmallFloat(floats, place) => {
                let floats = SmallFloats {
                    codes: next()?,
                    scales: next()?,
                    format: floats.format,
                };
                Self::SmallFloat(floats, *place)
            }
        };
        Some(format)
    }

    /// Whether matrices of the two can lie in one array.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain { .. }, Self::Plain { .. }) => true,
            (
                Self::Affine { bits, group, .. },
                Self::Affine {
                    bits: b, group: g, ..
                },
            ) => (bits, group) == (b, g),
            (Self::SmallFloat(a, _), Self::SmallFloat(b, _)) => a.format == b.format,
            _ => false,
        }
    }
}

/// Activations as a product with small floats takes them, whose sums have their format.
fn summed(x: &Array, place: Place) -> Result<Array, Exception> {
    match place {
        Place::Processor => cast(x, Dtype::Float32),
        Place::Metal => Ok(x.clone()),
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
