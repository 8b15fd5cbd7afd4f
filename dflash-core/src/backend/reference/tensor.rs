//! Float32 numbers in row-major order.

use std::rc::Rc;

use crate::{DType, Error, Result};

/// Numbers and their shape, always contiguous. A reshaped tensor shares memory, a slice is a copy.
#[derive(Debug, Clone, PartialEq)]
pub struct RefTensor {
    data: Rc<Vec<f32>>,
    shape: Rc<[usize]>,
}

impl RefTensor {
    /// Numbers in a shape; `what` names them in the error.
    pub(super) fn new(what: &str, data: Vec<f32>, shape: &[usize]) -> Result<Self> {
        if data.len() != shape.iter().product::<usize>() {
            return Err(Error::shape(
                what,
                format!("{} numbers", data.len()),
                format!("shape {shape:?}"),
            ));
        }
        Ok(Self {
            data: Rc::new(data),
            shape: shape.into(),
        })
    }

    /// All numbers, row-major.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Checks the shape; `what` names the tensor in the error.
    pub(super) fn expect(&self, what: &str, shape: &[usize]) -> Result<()> {
        if self.shape() == shape {
            Ok(())
        } else {
            Err(self.misfit(what, format!("{shape:?}")))
        }
    }

    pub(super) fn misfit(&self, what: &str, expected: impl std::fmt::Display) -> Error {
        Error::shape(what, expected, format!("{:?}", self.shape))
    }

    pub(super) fn reshape(&self, shape: &[usize]) -> Result<Self> {
        if self.data.len() != shape.iter().product::<usize>() {
            return Err(self.misfit("reshape", format!("as many numbers as in {shape:?}")));
        }
        Ok(Self {
            data: self.data.clone(),
            shape: shape.into(),
        })
    }

    /// Sizes before, of and after an axis.
    fn around(&self, op: &str, axis: usize) -> Result<(usize, usize, usize)> {
        let Some(&size) = self.shape.get(axis) else {
            return Err(self.misfit(op, format!("an axis {axis}")));
        };
        Ok((
            self.shape[..axis].iter().product(),
            size,
            self.shape[axis + 1..].iter().product(),
        ))
    }

    pub(super) fn swap_axes(&self, a: usize, b: usize) -> Result<Self> {
        let (a, b) = (a.min(b), a.max(b));
        if b >= self.shape.len() {
            return Err(self.misfit("swap_axes", format!("axes {a} and {b}")));
        }
        if a == b {
            return Ok(self.clone());
        }
        let (outer, first, _) = self.around("swap_axes", a)?;
        let (_, last, inner) = self.around("swap_axes", b)?;
        let between: usize = self.shape[a + 1..b].iter().product();
        let mut data = Vec::with_capacity(self.data.len());
        for o in 0..outer {
            for l in 0..last {
                for m in 0..between {
                    for f in 0..first {
                        let start = (((o * first + f) * between + m) * last + l) * inner;
                        data.extend_from_slice(&self.data[start..start + inner]);
                    }
                }
            }
        }
        let mut shape = self.shape.to_vec();
        shape.swap(a, b);
        Self::new("swap_axes", data, &shape)
    }

    pub(super) fn slice(&self, axis: usize, start: usize, len: usize) -> Result<Self> {
        let (outer, size, inner) = self.around("slice", axis)?;
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(self.misfit(
                "slice",
                format!(
                    "entries {start} to {} of axis {axis}",
                    start.saturating_add(len)
                ),
            ));
        }
        let mut data = Vec::with_capacity(outer * len * inner);
        for o in 0..outer {
            data.extend_from_slice(&self.data[(o * size + start) * inner..][..len * inner]);
        }
        let mut shape = self.shape.to_vec();
        shape[axis] = len;
        Self::new("slice", data, &shape)
    }

    pub(super) fn concat(parts: &[&Self], axis: usize) -> Result<Self> {
        let Some(first) = parts.first() else {
            return Err(Error::shape("concat", "at least one tensor", 0));
        };
        let (outer, ..) = first.around("concat", axis)?;
        let mut shape = first.shape.to_vec();
        shape[axis] = 0;
        for part in parts {
            let mut expected = shape.clone();
            expected[axis] = part.shape.get(axis).copied().unwrap_or(0);
            part.expect("concat", &expected)?;
            shape[axis] += expected[axis];
        }
        let mut data = Vec::with_capacity(shape.iter().product());
        for o in 0..outer {
            for part in parts {
                let run = part.data.len() / outer;
                data.extend_from_slice(&part.data[o * run..][..run]);
            }
        }
        Self::new("concat", data, &shape)
    }

    pub(super) fn rounded(&self, dtype: DType) -> Self {
        match dtype {
            DType::F32 => self.clone(),
            DType::Bf16 | DType::F16 => Self {
                data: Rc::new(rounded(&self.data, dtype)),
                shape: self.shape.clone(),
            },
        }
    }

    pub(super) fn map(&self, function: impl Fn(f32) -> f32) -> Self {
        Self {
            data: Rc::new(self.data.iter().map(|&x| function(x)).collect()),
            shape: self.shape.clone(),
        }
    }

    /// A number per pair; sizes of 1 broadcast.
    pub(super) fn zip(
        &self,
        op: &str,
        other: &Self,
        function: impl Fn(f32, f32) -> f32,
    ) -> Result<Self> {
        if self.shape == other.shape {
            let data = self
                .data
                .iter()
                .zip(other.data.iter())
                .map(|(&x, &y)| function(x, y))
                .collect();
            return Ok(Self {
                data: Rc::new(data),
                shape: self.shape.clone(),
            });
        }
        let sizes = self.shape.iter().zip(other.shape.iter());
        if self.shape.len() != other.shape.len()
            || sizes.clone().any(|(&a, &b)| a != b && a != 1 && b != 1)
        {
            return Err(other.misfit(
                op,
                format!("sizes that are equal to those of {:?} or 1", self.shape),
            ));
        }
        let shape: Vec<usize> = sizes.map(|(&a, &b)| if a == 1 { b } else { a }).collect();
        let (mine, others) = (self.broadcast_strides(), other.broadcast_strides());
        let mut data = Vec::with_capacity(shape.iter().product());
        let mut index = vec![0; shape.len()];
        for _ in 0..shape.iter().product() {
            let at = |strides: &[usize]| -> usize {
                index.iter().zip(strides).map(|(i, s)| i * s).sum()
            };
            data.push(function(self.data[at(&mine)], other.data[at(&others)]));
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Self::new(op, data, &shape)
    }

    /// Distance between entries along each axis; 0 where the size is 1.
    fn broadcast_strides(&self) -> Vec<usize> {
        let mut stride = 1;
        let mut strides: Vec<usize> = self
            .shape
            .iter()
            .rev()
            .map(|&size| {
                let this = if size == 1 { 0 } else { stride };
                stride *= size;
                this
            })
            .collect();
        strides.reverse();
        strides
    }

    /// One number per row of the last axis, which becomes 1.
    pub(super) fn reduce_rows(&self, op: &str, function: impl Fn(&[f32]) -> f32) -> Result<Self> {
        let Some(&width) = self.shape.last() else {
            return Err(self.misfit(op, "at least one axis"));
        };
        let mut shape = self.shape.to_vec();
        shape[self.shape.len() - 1] = 1;
        let rows = shape.iter().product();
        let data = (0..rows)
            .map(|r| function(&self.data[r * width..][..width]))
            .collect();
        Self::new(op, data, &shape)
    }
}

/// Numbers rounded to the nearest of a format.
pub(super) fn rounded(data: &[f32], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => data.to_vec(),
        DType::Bf16 => data
            .iter()
            .map(|&x| half::bf16::from_f32(x).to_f32())
            .collect(),
        DType::F16 => data
            .iter()
            .map(|&x| half::f16::from_f32(x).to_f32())
            .collect(),
    }
}

const LANES: usize = 16;

/// Σ a·b in a fixed order: 16 interleaved sums, then those first to last, then the rest.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let add = |lanes: [f32; LANES], (a, b): (&[f32; LANES], &[f32; LANES])| {
        std::array::from_fn(|lane| lanes[lane] + a[lane] * b[lane])
    };
    let lanes = a.iter().zip(b).fold([0.0; LANES], add);
    let rest = a_rest.iter().zip(b_rest);
    rest.fold(lanes.iter().sum(), |sum: f32, (a, b)| sum + a * b)
}

/// Σ a in the order of [`dot`].
pub(super) fn sum(a: &[f32]) -> f32 {
    let (a, rest) = a.as_chunks::<LANES>();
    let add =
        |lanes: [f32; LANES], a: &[f32; LANES]| std::array::from_fn(|lane| lanes[lane] + a[lane]);
    rest.iter().fold(
        a.iter().fold([0.0; LANES], add).iter().sum(),
        |sum: f32, a| sum + a,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(shape: &[usize]) -> RefTensor {
        let count: u16 = shape
            .iter()
            .product::<usize>()
            .try_into()
            .expect("a small shape");
        RefTensor::new("counted", (0..count).map(f32::from).collect(), shape)
            .expect("as many numbers")
    }

    #[test]
    fn axes_are_exchanged_cut_and_joined() {
        let t = counted(&[2, 3, 2]);
        let swapped = t.swap_axes(0, 2).expect("axes exist");
        assert_eq!(swapped.shape(), [2, 3, 2]);
        assert_eq!(
            swapped.data(),
            [0.0, 6.0, 2.0, 8.0, 4.0, 10.0, 1.0, 7.0, 3.0, 9.0, 5.0, 11.0]
        );
        let cut = t.slice(1, 1, 2).expect("inside");
        assert_eq!(
            (cut.shape(), cut.data()),
            (
                [2, 2, 2].as_slice(),
                [2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 10.0, 11.0].as_slice()
            )
        );
        let first = t.slice(1, 0, 1).expect("inside");
        assert_eq!(RefTensor::concat(&[&first, &cut], 1).expect("fit"), t);
    }

    #[test]
    fn sizes_of_one_broadcast() {
        let (column, row) = (counted(&[1, 2, 1]), counted(&[1, 1, 3]));
        let sum = column
            .zip("add", &row, |a, b| 10.0 * a + b)
            .expect("broadcast");
        assert_eq!(
            (sum.shape(), sum.data()),
            (
                [1, 2, 3].as_slice(),
                [0.0, 1.0, 2.0, 10.0, 11.0, 12.0].as_slice()
            )
        );
    }

    #[test]
    fn misfits_are_errors() {
        let t = counted(&[2, 3]);
        let errors = [
            t.reshape(&[5]),
            t.swap_axes(0, 2),
            t.slice(0, 1, 2),
            t.slice(1, usize::MAX, 2),
            t.slice(2, 0, 1),
            RefTensor::concat(&[], 0),
            RefTensor::concat(&[&t, &counted(&[3, 2])], 0),
            RefTensor::concat(&[&t, &counted(&[2])], 1),
            t.zip("add", &counted(&[2, 2]), |a, b| a + b),
            t.zip("add", &counted(&[3]), |a, b| a + b),
            RefTensor::new("given", vec![0.0; 5], &[2, 3]),
        ];
        for error in errors {
            assert!(matches!(error, Err(Error::Shape { .. })), "{error:?}");
        }
    }

    #[test]
    fn numbers_are_rounded_to_their_format() {
        assert_eq!(
            rounded(&[1.003_906_3, 70_000.0], DType::Bf16),
            [1.0, 70_144.0]
        );
        assert_eq!(
            rounded(&[1.000_5, 70_000.0], DType::F16),
            [1.000_976_6, f32::INFINITY]
        );
    }

    #[test]
    fn sums_have_the_order_of_products() {
        let a: Vec<f32> = (0..45u8).map(|i| 1.0 / (1.0 + f32::from(i))).collect();
        assert_eq!(sum(&a).to_bits(), dot(&a, &[1.0; 45]).to_bits());
        let exact: f64 = a.iter().map(|x| f64::from(*x)).sum();
        assert!((f64::from(sum(&a)) - exact).abs() < 1e-6);
    }
}
