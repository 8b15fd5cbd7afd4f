//! Inputs, the same on both backends.

use half::{bf16, f16};

use crate::backend::Backend;
use crate::checkpoint::{Bytes, Experts, SmallFloat, StoredTensor, StoredType, WeightSource};
use crate::{DType, Result};

/// How an input lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// In order.
    Contiguous,
    /// The last two axes were exchanged.
    Swapped,
    /// Cut out of a tensor that is wider on the last axis.
    Cut,
    /// Cut out of a tensor that is longer on the axis before the last.
    Rows,
}

impl Layout {
    pub(super) const ALL: [Self; 4] = [Self::Contiguous, Self::Swapped, Self::Cut, Self::Rows];
}

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Plain(DType),
    Affine { bits: u8, group: usize },
    SmallFloat(SmallFloat),
}

impl Stored {
    pub(super) const PLAIN: [Self; 3] = [
        Self::Plain(DType::F32),
        Self::Plain(DType::Bf16),
        Self::Plain(DType::F16),
    ];
    pub(super) const SMALL_FLOATS: [Self; 3] = [
        Self::SmallFloat(SmallFloat::Mxfp4),
        Self::SmallFloat(SmallFloat::Mxfp8),
        Self::SmallFloat(SmallFloat::Nvfp4),
    ];
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(dtype) => write!(f, "{dtype} weight"),
            Self::Affine { bits, group } => {
                write!(f, "affine {bits}-bit weight in groups of {group}")
            }
            Self::SmallFloat(format) => write!(f, "small-float weight in {}", format.name()),
        }
    }
}

/// Makes inputs for one backend. Two makers with the same seed give the same numbers.
#[derive(Debug)]
pub(super) struct Maker<'a, B: Backend> {
    backend: &'a B,
    /// Format of activations, that of the backend under test.
    dtype: DType,
    seed: u64,
}

impl<'a, B: Backend> Maker<'a, B> {
    pub(super) fn new(backend: &'a B, dtype: DType, seed: u64) -> Self {
        Self {
            backend,
            dtype,
            seed,
        }
    }

    /// Evenly spread numbers between -1 and 1 (SplitMix64).
    pub(super) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| {
                self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut z = self.seed;
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                #[expect(clippy::cast_precision_loss, reason = "24 bits")]
                let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32;
                unit - 1.0
            })
            .collect()
    }

    /// Random activations.
    pub(super) fn tensor(&mut self, shape: &[usize], layout: Layout) -> Result<B::Tensor> {
        let numbers = self.numbers(shape.iter().product());
        self.laid_out(&numbers, shape, layout)
    }

    /// Random contiguous activations.
    pub(super) fn plain(&mut self, shape: &[usize]) -> Result<B::Tensor> {
        self.tensor(shape, Layout::Contiguous)
    }

    /// Random float32 numbers.
    pub(super) fn wide(&mut self, shape: &[usize]) -> Result<B::Tensor> {
        let numbers = self.numbers(shape.iter().product());
        self.backend.upload(&numbers, shape, DType::F32)
    }

    /// Given numbers as activations.
    pub(super) fn given(&self, numbers: &[f32], shape: &[usize]) -> Result<B::Tensor> {
        let rounded: Vec<f32> = numbers.iter().map(|&x| round(x, self.dtype)).collect();
        self.backend.upload(&rounded, shape, self.dtype)
    }

    /// Given numbers as activations, in a layout. What lies between them is not a number.
    pub(super) fn laid_out(
        &self,
        numbers: &[f32],
        shape: &[usize],
        layout: Layout,
    ) -> Result<B::Tensor> {
        let b = self.backend;
        let &[ref outer @ .., height, width] = shape else {
            return self.given(numbers, shape);
        };
        let count: usize = outer.iter().product();
        let with = |height, width| [outer, &[height, width]].concat();
        match layout {
            Layout::Contiguous => self.given(numbers, shape),
            Layout::Swapped => {
                let matrices = numbers.chunks_exact((height * width).max(1));
                let swapped: Vec<f32> = matrices
                    .flat_map(|m| (0..height * width).map(|i| m[i % height * width + i / height]))
                    .collect();
                b.swap_axes(
                    &self.given(&swapped, &with(width, height))?,
                    outer.len(),
                    outer.len() + 1,
                )
            }
            Layout::Cut => {
                let mut wider = vec![f32::NAN; count * height * (width + 5)];
                for (to, from) in wider
                    .chunks_exact_mut(width + 5)
                    .zip(numbers.chunks_exact(width))
                {
                    to[3..width + 3].copy_from_slice(from);
                }
                b.slice(
                    &self.given(&wider, &with(height, width + 5))?,
                    outer.len() + 1,
                    3,
                    width,
                )
            }
            Layout::Rows => {
                let mut longer = vec![f32::NAN; count * (height + 3) * width];
                for (to, from) in longer
                    .chunks_exact_mut((height + 3) * width)
                    .zip(numbers.chunks_exact(height * width))
                {
                    to[2 * width..(height + 2) * width].copy_from_slice(from);
                }
                b.slice(
                    &self.given(&longer, &with(height + 3, width))?,
                    outer.len(),
                    2,
                    height,
                )
            }
        }
    }

    /// A random matrix, of numbers that keep sums over `inputs` near 1.
    pub(super) fn weight(
        &mut self,
        stored: Stored,
        outputs: usize,
        inputs: usize,
    ) -> Result<B::Weight> {
        let source = self.source(stored, outputs, inputs);
        self.backend.weight(source)
    }

    /// Random experts.
    pub(super) fn experts(
        &mut self,
        stored: Stored,
        count: usize,
        width: usize,
        dim: usize,
    ) -> Result<B::Experts> {
        let mut list = |outputs, inputs| {
            (0..count)
                .map(|_| self.source(stored, outputs, inputs))
                .collect()
        };
        let source = Experts {
            gate: list(width, dim),
            up: list(width, dim),
            down: list(dim, width),
        };
        self.backend.experts(source)
    }

    fn source(&mut self, stored: Stored, outputs: usize, inputs: usize) -> WeightSource {
        #[expect(clippy::cast_precision_loss, reason = "a small size")]
        let scale = (3.0 / inputs as f32).sqrt();
        match stored {
            Stored::Plain(dtype) => {
                let numbers: Vec<f32> = self
                    .numbers(outputs * inputs)
                    .iter()
                    .map(|x| x * scale)
                    .collect();
                WeightSource::Plain(stored_floats(&numbers, &[outputs, inputs], dtype))
            }
            Stored::Affine { bits, group } => {
                let codes = self.codes(outputs, inputs * usize::from(bits) / 32);
                let groups = outputs * (inputs / group);
                #[expect(clippy::cast_precision_loss, reason = "a small power of two")]
                let step = 2.0 * scale / (1u32 << bits) as f32;
                let scales: Vec<f32> = self.numbers(groups).iter().map(|x| step * x).collect();
                let biases: Vec<f32> = self.numbers(groups).iter().map(|x| scale * x).collect();
                WeightSource::Affine {
                    codes,
                    scales: stored_floats(&scales, &[outputs, inputs / group], DType::Bf16),
                    biases: stored_floats(&biases, &[outputs, inputs / group], DType::Bf16),
                    bits,
                    group,
                    out: outputs,
                    inp: inputs,
                }
            }
            Stored::SmallFloat(format) => {
                let mut codes = self.codes(outputs, inputs * format.bits() / 32);
                if format == SmallFloat::Mxfp8 {
                    // All ones is not a number.
                    let finite: Vec<u8> = codes
                        .bytes
                        .iter()
                        .map(|c| if c & 0x7f == 0x7f { c ^ 1 } else { *c })
                        .collect();
                    codes.bytes = Bytes::copied(&finite);
                }
                let groups = outputs * (inputs / format.group());
                // Four steps below the scale that makes the largest code reach the others' numbers.
                let largest = match format {
                    SmallFloat::Mxfp4 | SmallFloat::Nvfp4 => 6.0,
                    SmallFloat::Mxfp8 => 448.0,
                };
                let top = format.scale_at_most(scale / largest).unwrap_or(0);
                let scales: Vec<u8> = self
                    .codes(groups, 1)
                    .bytes
                    .iter()
                    .step_by(4)
                    .map(|s| top.saturating_sub(s % 4))
                    .collect();
                WeightSource::SmallFloat {
                    codes,
                    scales: StoredTensor {
                        name: "scales".into(),
                        dtype: StoredType::U8,
                        shape: vec![outputs, inputs / format.group()],
                        bytes: Bytes::copied(&scales),
                    },
                    format,
                    out: outputs,
                    inp: inputs,
                }
            }
        }
    }

    /// Random words.
    fn codes(&mut self, rows: usize, words: usize) -> StoredTensor {
        let bytes: Vec<u8> = self
            .numbers(rows * words * 4)
            .iter()
            .flat_map(|x| x.to_bits().to_le_bytes().into_iter().take(1))
            .collect();
        StoredTensor {
            name: "codes".into(),
            dtype: StoredType::U32,
            shape: vec![rows, words],
            bytes: Bytes::copied(&bytes),
        }
    }
}

/// The nearest number of a format.
pub(super) fn round(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F32 => x,
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
    }
}

/// Numbers as a file holds them.
pub(super) fn stored_floats(numbers: &[f32], shape: &[usize], dtype: DType) -> StoredTensor {
    let (dtype, bytes): (_, Vec<u8>) = match dtype {
        DType::F32 => (
            StoredType::F32,
            numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ),
        DType::Bf16 => (
            StoredType::Bf16,
            numbers
                .iter()
                .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
                .collect(),
        ),
        DType::F16 => (
            StoredType::F16,
            numbers
                .iter()
                .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                .collect(),
        ),
    };
    StoredTensor {
        name: "weight".into(),
        dtype,
        shape: shape.to_vec(),
        bytes: Bytes::copied(&bytes),
    }
}
