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
        let refused = |what| {
            Err(Error::Unsupported {
                what,
                by: Some("the candle backend on a GPU".into()),
                hint: Some("use `--device cpu`, or the unquantized checkpoint".into()),
            })
        };
        match source {
            WeightSource::Plain(tensor) => plain(&tensor, activations, device).map(Self),
            WeightSource::Affine {
                codes, bits, group, ..
            } => refused(format!(
                "`{}`: {bits}-bit weights in groups of {group}",
                codes.name
            )),
            WeightSource::SmallFloat { codes, format, .. } => {
                refused(format!("`{}`: weights in {}", codes.name, format.name()))
            }
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

#[cfg(test)]
mod tests {
    use dflash_core::checkpoint::{Bytes, StoredType};

    use super::*;

    fn stored(dtype: StoredType, shape: &[usize], bytes: usize) -> WeightSource {
        WeightSource::Plain(StoredTensor {
            name: "w".into(),
            dtype,
            shape: shape.to_vec(),
            bytes: Bytes::copied(&vec![0; bytes]),
        })
    }

    #[test]
    fn a_matrix_keeps_its_format_or_is_widened() {
        let kept = |file: StoredType, size: usize, activations| {
            let weight =
                DeviceWeight::new(stored(file, &[2, 3], 6 * size), activations, &Device::Cpu);
            weight.expect("a matrix").tensor().dtype()
        };
        assert_eq!(kept(StoredType::Bf16, 2, DType::BF16), DType::BF16);
        assert_eq!(kept(StoredType::F16, 2, DType::F16), DType::F16);
        assert_eq!(kept(StoredType::F32, 4, DType::BF16), DType::F32);
        assert_eq!(kept(StoredType::Bf16, 2, DType::F32), DType::F32);
        assert_eq!(kept(StoredType::F16, 2, DType::BF16), DType::F32);
    }

    #[test]
    fn what_is_not_a_matrix_is_refused() {
        for (dtype, shape, bytes) in [
            (StoredType::U32, &[2, 3][..], 24),
            (StoredType::F32, &[6], 24),
            (StoredType::F32, &[2, 3], 20),
            (StoredType::F32, &[2, 0], 0),
        ] {
            let refused = DeviceWeight::new(stored(dtype, shape, bytes), DType::F32, &Device::Cpu);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{shape:?}");
        }
    }

    #[test]
    fn experts_of_different_sizes_are_refused() {
        let list = |shape: &[usize]| {
            let bytes = 4 * shape.iter().product::<usize>();
            vec![stored(StoredType::F32, shape, bytes); 2]
        };
        let experts = |up: &[usize], down: &[usize]| {
            let source = Experts {
                gate: list(&[4, 6]),
                up: list(up),
                down: list(down),
            };
            DeviceExperts::new(source, DType::F32, &Device::Cpu)
        };
        assert_eq!(
            experts(&[4, 6], &[6, 4]).expect("they fit").sizes(),
            (2, 4, 6)
        );
        assert!(matches!(
            experts(&[4, 6], &[4, 6]),
            Err(Error::Shape { .. })
        ));
        assert!(matches!(
            experts(&[5, 6], &[6, 4]),
            Err(Error::Shape { .. })
        ));
    }
}
