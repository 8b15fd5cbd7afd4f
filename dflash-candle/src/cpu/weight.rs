//! Matrices that stay in the bytes of their file.

use dflash_core::checkpoint::{Bytes, Experts, SmallFloat, WeightSource};
use dflash_core::{DType, Error, Result};

use crate::kernels::cpu::{Affine, Codes, Expert, Matrix, SmallFloats};

/// A matrix `[outputs, inputs]`, widened by each product.
#[derive(Debug)]
pub struct CpuWeight {
    numbers: Numbers,
    outputs: usize,
    inputs: usize,
}

#[derive(Debug)]
enum Numbers {
    Plain {
        bytes: Bytes,
        dtype: DType,
    },
    Affine {
        codes: Bytes,
        scales: Bytes,
        biases: Bytes,
        factors: DType,
        bits: usize,
        group: usize,
    },
    SmallFloat {
        codes: Bytes,
        scales: Bytes,
        format: SmallFloat,
    },
}

impl CpuWeight {
    pub(super) fn new(source: WeightSource) -> Result<Self> {
        source.check()?;
        let (outputs, inputs) = (source.out(), source.inp());
        if inputs == 0 {
            return Err(Error::shape(
                format!("weight `{}`", source.name()),
                "at least one column",
                inputs,
            ));
        }
        let numbers = match source {
            WeightSource::Plain(tensor) => Numbers::Plain {
                dtype: tensor.float()?,
                bytes: tensor.bytes,
            },
            WeightSource::Affine {
                codes,
                scales,
                biases,
                bits,
                group,
                ..
            } => Numbers::Affine {
                factors: scales.float()?,
                codes: codes.bytes,
                scales: scales.bytes,
                biases: biases.bytes,
                bits: usize::from(bits),
                group,
            },
            WeightSource::SmallFloat {
                codes,
                scales,
                format,
                ..
            } => Numbers::SmallFloat {
                codes: codes.bytes,
                scales: scales.bytes,
                format,
            },
        };
        Ok(Self {
            numbers,
            outputs,
            inputs,
        })
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        match &self.numbers {
            Numbers::Plain { bytes, dtype } => {
                Matrix::new(bytes, *dtype, self.outputs, self.inputs)
            }
            Numbers::Affine {
                codes,
                scales,
                biases,
                factors,
                bits,
                group,
            } => {
                let codes = Codes::Affine(Affine {
                    codes,
                    scales,
                    biases,
                    factors: *factors,
                    bits: *bits,
                    group: *group,
                });
                Matrix::coded(codes, self.outputs, self.inputs)
            }
            Numbers::SmallFloat {
                codes,
                scales,
                format,
            } => {
                let codes = Codes::SmallFloats(SmallFloats {
                    codes,
                    scales,
                    format: *format,
                });
                Matrix::coded(codes, self.outputs, self.inputs)
            }
        }
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Checks ids against the matrix's rows.
    pub(super) fn check_ids(&self, op: &'static str, ids: &[u32]) -> Result<()> {
        match ids.iter().find(|id| **id as usize >= self.outputs) {
            Some(id) => Err(Error::shape(op, format!("ids below {}", self.outputs), id)),
            None => Ok(()),
        }
    }
}

/// A layer's experts.
#[derive(Debug)]
pub struct CpuExperts(Vec<[CpuWeight; 3]>);

impl CpuExperts {
    pub(super) fn new(source: Experts) -> Result<Self> {
        let matrices = source.gate.into_iter().zip(source.up).zip(source.down);
        let experts: Vec<_> = matrices
            .map(|((gate, up), down)| {
                Ok([
                    CpuWeight::new(gate)?,
                    CpuWeight::new(up)?,
                    CpuWeight::new(down)?,
                ])
            })
            .collect::<Result<_>>()?;
        let sizes = |e: &[CpuWeight; 3]| (e[0].inputs, e[0].outputs);
        for expert in &experts {
            let (hidden, width) = sizes(&experts[0]);
            let fits = [&expert[0], &expert[1]]
                .iter()
                .all(|w| (w.inputs, w.outputs) == (hidden, width));
            if !fits || (expert[2].inputs, expert[2].outputs) != (width, hidden) {
                return Err(Error::shape("experts", "equal sizes", "different sizes"));
            }
        }
        Ok(Self(experts))
    }

    pub(super) fn matrices(&self) -> Vec<Expert<'_>> {
        self.0
            .iter()
            .map(|[gate, up, down]| Expert {
                gate: gate.matrix(),
                up: up.matrix(),
                down: down.matrix(),
            })
            .collect()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn hidden(&self) -> usize {
        self.0.first().map_or(0, |e| e[0].inputs)
    }
}
