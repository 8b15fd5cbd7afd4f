//! Small functions of candle tensors, in float32, that candle has in another crate or not at all.

use candle_core::{D, DType, Device, Result, Tensor};
use dflash_core::backend::Unary;

/// The same numbers in float32; no copy if they are.
pub(super) fn wide(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(DType::F32)
}

/// Candle's name of a format.
pub(super) const fn native(dtype: dflash_core::DType) -> DType {
    match dtype {
        dflash_core::DType::F32 => DType::F32,
        dflash_core::DType::Bf16 => DType::BF16,
        dflash_core::DType::F16 => DType::F16,
    }
}

/// A function of each number, computed in float32.
pub(super) fn unary(t: &Tensor, function: Unary) -> Result<Tensor> {
    let x = wide(t)?;
    let y = match function {
        Unary::Exp => x.exp()?,
        Unary::Silu => x.silu()?,
        Unary::Sigmoid => x.neg()?.exp()?.affine(1.0, 1.0)?.recip()?,
        Unary::Softplus => softplus(&x)?,
        Unary::Tanh => x.tanh()?,
    };
    y.to_dtype(t.dtype())
}

/// `ln(1 + e^x)` = max(x, 0) + ln(1 + u) with u = e^-|x|.
///
/// 1 + u loses the low bits of u. What was really added is w - 1 with w = 1 + u rounded, and
/// `ln(w) · u / (w - 1)` has the relative precision of `ln`; where w = 1, the logarithm is u.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let u = x.abs()?.neg()?.exp()?;
    let w = u.affine(1.0, 1.0)?;
    let added = w.affine(1.0, -1.0)?;
    let ratio = (w.log()? * &u)?.div(&added)?;
    let log = added.eq(&added.zeros_like()?)?.where_cond(&u, &ratio)?;
    x.relu()? + log
}

/// `x / sqrt(mean(x²) + eps) * weight` over the last axis, in float32.
pub(super) fn rms_norm(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let x = wide(x)?;
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    let y = x.broadcast_div(&mean.affine(1.0, f64::from(eps))?.sqrt()?)?;
    match weight {
        Some(weight) => y.broadcast_mul(&wide(weight)?),
        None => Ok(y),
    }
}

/// Softmax over the last axis, in float32.
pub(super) fn softmax(x: &Tensor) -> Result<Tensor> {
    let p = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    p.broadcast_div(&p.sum_keepdim(D::Minus1)?)
}

/// The largest number of each row of `[rows, width]` and its column, `[rows, 1]` each in float32; of equals, the first.
///
/// A device's own argmax may take any of equals. `columns` is `[1, width]`: 0, 1, 2, … The column
/// of a row that holds no largest number (it is not a number) is the last.
pub(super) fn best(x: &Tensor, columns: &Tensor) -> Result<(Tensor, Tensor)> {
    let value = x.max_keepdim(D::Minus1)?;
    let last = columns.narrow(1, columns.dim(1)? - 1, 1)?;
    let column = x
        .broadcast_eq(&value)?
        .where_cond(
            &columns.broadcast_as(x.shape())?,
            &last.broadcast_as(x.shape())?,
        )?
        .min_keepdim(D::Minus1)?;
    Ok((value, column))
}

/// The rows without the numbers in the given columns `[rows, 1]`, which become minus infinity.
pub(super) fn without(x: &Tensor, column: &Tensor, columns: &Tensor) -> Result<Tensor> {
    let gone = Tensor::full(f32::NEG_INFINITY, (1, 1), x.device())?;
    let (columns, column) = (
        columns.broadcast_as(x.shape())?,
        column.broadcast_as(x.shape())?,
    );
    columns
        .eq(&column)?
        .where_cond(&gone.broadcast_as(x.shape())?, x)
}

/// 0 for each row of `[rows, width]` whose numbers are all finite, else not a number: `[rows]`, float32.
///
/// To be compared on the host: candle compiles its Metal kernels with fast math, which may take a
/// comparison with what is not a number either way.
pub(super) fn finite_zero(x: &Tensor) -> Result<Tensor> {
    x.sub(x)?.sum(D::Minus1)
}

/// `[1, width]`: 0, 1, 2, …
pub(super) fn columns(width: usize, device: &Device) -> Result<Tensor> {
    #[expect(clippy::cast_precision_loss, reason = "callers keep widths below 2^24")]
    let end = width as f32;
    Tensor::arange(0f32, end, device)?.reshape((1, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(data: &[f32], width: usize) -> Tensor {
        Tensor::from_slice(data, (data.len() / width, width), &Device::Cpu).expect("fits")
    }

    fn numbers(t: &Tensor) -> Vec<f32> {
        t.flatten_all().and_then(|t| t.to_vec1()).expect("numbers")
    }

    #[test]
    fn the_first_of_equals_is_best_and_columns_stay_valid() {
        let x = rows(
            &[
                1.0,
                5.0,
                5.0,
                0.0,
                7.0,
                7.0,
                7.0,
                7.0,
                f32::NAN,
                0.0,
                1.0,
                2.0,
            ],
            4,
        );
        let columns = columns(4, &Device::Cpu).expect("four");
        let (value, column) = best(&x, &columns).expect("rows");
        assert_eq!(numbers(&value)[..2], [5.0, 7.0]);
        assert_eq!(numbers(&column)[..2], [1.0, 0.0]);
        assert!(numbers(&column)[2] < 4.0);
        let rest = without(&x, &column, &columns).expect("rows");
        let (value, column) = best(&rest, &columns).expect("rows");
        assert_eq!(numbers(&value)[..2], [5.0, 7.0]);
        assert_eq!(numbers(&column)[..2], [2.0, 1.0]);
    }

    #[test]
    fn rows_that_are_not_finite_are_told() {
        let x = rows(
            &[
                1.0,
                -3.0e38,
                0.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                1.0,
                f32::NAN,
                0.0,
            ],
            2,
        );
        let finite = numbers(&finite_zero(&x).expect("rows"));
        assert_eq!(
            finite.iter().map(|x| *x == 0.0).collect::<Vec<_>>(),
            [true, false, false, false]
        );
    }
}
