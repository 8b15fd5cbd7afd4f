//! Numbers of a processor tensor as slices.

use std::ops::Deref;

use candle_core::{Device, Layout, Storage, Tensor, WithDType};
use dflash_core::{Error, Result};

/// A tensor's memory, locked for reading.
pub(super) struct View<'a, S> {
    storage: S,
    layout: &'a Layout,
}

/// Locks a tensor's memory for reading.
pub(super) fn view(t: &Tensor) -> View<'_, impl Deref<Target = Storage>> {
    let (storage, layout) = t.storage_and_layout();
    View { storage, layout }
}

impl<S: Deref<Target = Storage>> View<'_, S> {
    /// From the first number on; the layout's strides say where the others are.
    pub(super) fn strided(&self, op: &'static str) -> Result<&[f32]> {
        let Storage::Cpu(storage) = &*self.storage else {
            return Err(Error::backend(op, "the tensor is not in processor memory"));
        };
        let all = f32::cpu_storage_as_slice(storage).map_err(|e| Error::backend(op, e))?;
        Ok(&all[self.layout.start_offset()..])
    }

    /// All numbers in order; the tensor must be contiguous.
    pub(super) fn dense(&self, op: &'static str) -> Result<&[f32]> {
        if !self.layout.is_contiguous() {
            return Err(Error::backend(op, "the tensor is not contiguous"));
        }
        Ok(&self.strided(op)?[..self.layout.shape().elem_count()])
    }
}

/// The same numbers without gaps; no copy if there are none.
pub(super) fn dense(op: &'static str, t: &Tensor) -> Result<Tensor> {
    if t.is_contiguous() {
        return Ok(t.clone());
    }
    let (dims, strides) = (t.dims(), t.stride());
    let numbers = view(t);
    let from = numbers.strided(op)?;
    let mut data = Vec::with_capacity(t.elem_count());
    copy(from, dims, strides, &mut data);
    tensor(op, data, dims)
}

/// Appends the numbers of a strided tensor in order, whole runs at a time.
fn copy(from: &[f32], dims: &[usize], strides: &[usize], to: &mut Vec<f32>) {
    match (dims, strides) {
        ([], _) | (_, []) => to.push(from[0]),
        (&[len], &[1]) => to.extend_from_slice(&from[..len]),
        ([len, dims @ ..], [stride, strides @ ..]) => {
            for i in 0..*len {
                copy(&from[i * stride..], dims, strides, to);
            }
        }
    }
}

/// Tensors side by side along an axis.
pub(super) fn join(parts: &[&Tensor], axis: usize) -> Result<Tensor> {
    let op = "concat";
    let Some(first) = parts.first().filter(|t| axis < t.dims().len()) else {
        let found = parts.first().map_or(0, |t| t.dims().len());
        return Err(Error::shape(op, format!("more than {axis} axes"), found));
    };
    let mut dims = first.dims().to_vec();
    dims[axis] = 0;
    let mut own = Vec::with_capacity(parts.len());
    for part in parts {
        let same = |(i, d): (usize, &usize)| i == axis || Some(d) == first.dims().get(i);
        if part.dims().len() != dims.len() || !part.dims().iter().enumerate().all(same) {
            let expected = format!("{:?} but for axis {axis}", first.dims());
            return Err(Error::shape(op, expected, format!("{:?}", part.dims())));
        }
        dims[axis] += part.dims()[axis];
        own.push(dense(op, part)?);
    }
    let views: Vec<_> = own.iter().map(view).collect();
    let runs: Vec<&[f32]> = views.iter().map(|v| v.dense(op)).collect::<Result<_>>()?;
    let outer: usize = dims[..axis].iter().product();
    let mut data = Vec::with_capacity(dims.iter().product());
    for i in 0..outer {
        for run in &runs {
            let len = run.len() / outer;
            data.extend_from_slice(&run[i * len..(i + 1) * len]);
        }
    }
    tensor(op, data, &dims)
}

/// A tensor around numbers.
pub(super) fn tensor(op: &'static str, data: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(data, shape, &Device::Cpu).map_err(|e| Error::backend(op, e))
}

/// Three sizes, the first of which is 1.
pub(super) fn rows_of(op: &'static str, t: &Tensor) -> Result<(usize, usize)> {
    match t.dims() {
        &[1, rows, width] if width > 0 => Ok((rows, width)),
        other => Err(Error::shape(op, "[1, rows, width]", format!("{other:?}"))),
    }
}

/// Checks a whole shape.
pub(super) fn expect(op: &'static str, t: &Tensor, shape: &[usize]) -> Result<()> {
    if t.dims() == shape {
        Ok(())
    } else {
        Err(Error::shape(
            op,
            format!("{shape:?}"),
            format!("{:?}", t.dims()),
        ))
    }
}

/// Size of an axis; 0 if there is no such axis.
pub(super) fn dim(t: &Tensor, axis: usize) -> usize {
    t.dims().get(axis).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(dims: &[usize]) -> Tensor {
        let count: u16 = dims.iter().product::<usize>().try_into().expect("few");
        tensor("test", (0..count).map(f32::from).collect(), dims).expect("fits")
    }

    #[test]
    fn strided_numbers_are_gathered_as_candle_does() {
        let t = numbers(&[2, 3, 4, 5]);
        let shuffled = t.transpose(1, 2).expect("axes exist");
        let cases = [
            t.narrow(3, 1, 3),
            t.narrow(1, 2, 1),
            shuffled.narrow(3, 0, 2),
            t.transpose(2, 3),
            t.narrow(2, 0, 0),
        ];
        for case in cases.map(|c| c.expect("inside")).iter().chain([&shuffled]) {
            let expected = case.contiguous().expect("candle copies");
            let found = dense("test", case).expect("copied");
            assert_eq!(found.dims(), expected.dims());
            let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
            assert_eq!(flat(&found).expect("f32"), flat(&expected).expect("f32"));
        }
    }

    #[test]
    fn tensors_are_joined_as_candle_does() {
        let (a, b) = (numbers(&[2, 3, 4]), numbers(&[2, 4, 3]));
        let b = b.transpose(1, 2).expect("axes exist");
        for axis in 0..3 {
            let expected = Tensor::cat(&[&a, &b], axis).expect("candle joins");
            let found = join(&[&a, &b], axis).expect("joined");
            assert_eq!(found.dims(), expected.dims());
            let all = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
            assert_eq!(all(&found).expect("f32"), all(&expected).expect("f32"));
        }
        let other = numbers(&[2, 3, 5]);
        assert!(join(&[&a, &other], 2).is_ok() && join(&[&a, &other], 1).is_err());
        assert!(join(&[&a], 3).is_err() && join(&[], 0).is_err());
    }
}
