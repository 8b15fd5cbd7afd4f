//! Matrices on the device.

use candle_core::{DType, Device, Tensor};
use dflash_core::checkpoint::{Experts, StoredTensor, WeightSource};
use dflash_core::{Error, Result};

use super::maths::native;

/// A matrix `[outputs, inputs]` in the device's memory.
///
/// Candle multiplies tensors of one format only. The matrix stays in its file's format where that
/// is the activations' or float32, and rows of activations are cast to it; any other is widened
/// to float32 once, when it is loaded. So no number of a file is ever rounded.
#[derive(Debug)]
pub struct DeviceWeight(Tensor);

impl DeviceWeight {
    pub(super) fn new(source: WeightSource, activations: DType, device: &Device) -> Result<Self> {
        match source {
            WeightSource::Plain(tensor) => plain(&tensor, activations, device).map(Self),
            WeightSource::Affine {
                codes, bits, group, ..
            } => Err(Error::Unsupported {
                what: format!("`{}`: {bits}-bit weights in groups of {group}", codes.name),
                by: Some("the candle backend on a GPU".into()),
                hint: Some("use `--device cpu`, or the unquantized checkpoint".into()),
            }),
        }
    }

    /// `[outputs, inputs]`.
    pub(super) fn tensor(&self) -> &Tensor {
        &self.0
    }

    pub(super) fn outputs(&self) -> usize {
        self.0.dims()[0]
    }

    pub(super) fn inputs(&self) -> usize {
        self.0.dims()[1]
    }
}

fn plain(stored: &StoredTensor, activations: DType, device: &Device) -> Result<Tensor> {
    let (Some(dtype), &[outputs, inputs]) = (stored.float_dtype(), stored.shape.as_slice()) else {
        return Err(misfit(stored));
    };
    if inputs == 0 || outputs == 0 || stored.bytes.len() != outputs * inputs * dtype.size() {
        return Err(misfit(stored));
    }
    let dtype = native(dtype);
    let kept = if dtype == activations {
        dtype
    } else {
        DType::F32
    };
    Tensor::from_raw_buffer(&stored.bytes, dtype, &[outputs, inputs], device)
        .and_then(|t| t.to_dtype(kept))
        .map_err(|e| Error::backend("weight", e).at(format!("`{}`", stored.name)))
}

fn misfit(stored: &StoredTensor) -> Error {
    let found = format!(
        "{:?} of {:?} in {} bytes",
        stored.shape,
        stored.dtype,
        stored.bytes.len()
    );
    Error::shape(
        format!("weight `{}`", stored.name),
        "[outputs, inputs] of f32, bf16 or f16",
        found,
    )
}

/// A layer's experts, each kind of matrix in one tensor.
#[derive(Debug)]
pub struct DeviceExperts {
    /// `[experts, width, hidden]`.
    pub(super) gate: Tensor,
    /// `[experts, width, hidden]`.
    pub(super) up: Tensor,
    /// `[experts, hidden, width]`.
    pub(super) down: Tensor,
}

impl DeviceExperts {
    pub(super) fn new(source: Experts, activations: DType, device: &Device) -> Result<Self> {
        let stack = |list: Vec<WeightSource>| -> Result<Tensor> {
            let matrices = list
                .into_iter()
                .map(|w| DeviceWeight::new(w, activations, device).map(|w| w.0))
                .collect::<Result<Vec<_>>>()?;
            Tensor::stack(&matrices, 0).map_err(|e| Error::backend("experts", e))
        };
        let experts = Self {
            gate: stack(source.gate)?,
            up: stack(source.up)?,
            down: stack(source.down)?,
        };
        let (count, width, hidden) = experts.sizes();
        let fits = experts.up.dims() == [count, width, hidden]
            && experts.down.dims() == [count, hidden, width]
            && experts.up.dtype() == experts.gate.dtype()
            && experts.down.dtype() == experts.gate.dtype();
        if fits {
            Ok(experts)
        } else {
            let found = [&experts.gate, &experts.up, &experts.down]
                .map(|t| format!("{:?} {}", t.dims(), t.dtype().as_str()));
            Err(Error::shape(
                "experts",
                "gate and up [experts, width, hidden], down [experts, hidden, width], of one format",
                found.join(", "),
            ))
        }
    }

    /// Experts, features of an expert, features of a row.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let d = self.gate.dims();
        (d[0], d[1], d[2])
    }
}
