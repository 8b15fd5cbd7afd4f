//! Matrices that stay in the bytes of their file.

use dflash_core::checkpoint::{Bytes, Experts, StoredTensor, WeightSource};
use dflash_core::{DType, Error, Result};

use crate::kernels::cpu::{Expert, Matrix};

/// A matrix `[outputs, inputs]`, widened in registers by each product.
#[derive(Debug)]
pub struct CpuWeight {
    bytes: Bytes,
    dtype: DType,
    outputs: usize,
    inputs: usize,
}

impl CpuWeight {
    pub(super) fn new(source: WeightSource) -> Result<Self> {
        match source {
            WeightSource::Plain(tensor) => Self::plain(tensor),
            WeightSource::Affine {
                codes, bits, group, ..
            } => Err(Error::Unsupported {
                what: format!("`{}`: {bits}-bit weights in groups of {group}", codes.name),
                by: Some("the candle backend".into()),
                hint: Some("use `--backend reference`, or the unquantized checkpoint".into()),
            }),
        }
    }

    fn plain(tensor: StoredTensor) -> Result<Self> {
        let fits = |t: &StoredTensor| match (t.float_dtype(), t.shape.as_slice()) {
            (Some(dtype), &[outputs, inputs])
                if inputs > 0 && t.bytes.len() == outputs * inputs * dtype.size() =>
            {
                Some((dtype, outputs, inputs))
            }
            _ => None,
        };
        let Some((dtype, outputs, inputs)) = fits(&tensor) else {
            let found = format!(
                "{:?} of {:?} in {} bytes",
                tensor.shape,
                tensor.dtype,
                tensor.bytes.len()
            );
            return Err(Error::shape(
                format!("weight `{}`", tensor.name),
                "[outputs, inputs] of f32, bf16 or f16",
                found,
            ));
        };
        Ok(Self {
            bytes: tensor.bytes,
            dtype,
            outputs,
            inputs,
        })
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(&self.bytes, self.dtype, self.outputs, self.inputs)
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
