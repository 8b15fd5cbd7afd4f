//! A mixture of experts without asking the host which experts were chosen.

use candle_core::{D, DType, Result, Tensor};
use dflash_core::backend::MoeParams;

use super::maths::{best, columns, softmax, wide, without};
use super::weight::DeviceExperts;

/// Rows that all experts compute at once; bounds the memory of `[experts, rows, hidden]`.
const ROWS: usize = 64;

/// The weighted outputs of each row's experts, `[rows, hidden]` in float32. `x` is `[rows, hidden]` in the experts' format.
///
/// Few rows gather their experts' matrices; where that would gather more matrices than there are,
/// every expert computes every row and the rows' own are picked from the results.
pub(super) fn moe(
    x: &Tensor,
    logits: &Tensor,
    experts: &DeviceExperts,
    params: &MoeParams,
) -> Result<Tensor> {
    let (ids, weights) = routes(&wide(logits)?, params)?;
    let rows = x.dim(0)?;
    if rows * params.top_k <= experts.sizes().0 {
        let y = gathered(x, &ids, experts)?;
        return mixed(&y, &weights);
    }
    let parts = (0..rows)
        .step_by(ROWS)
        .map(|first| {
            let part = |t: &Tensor| t.narrow(0, first, ROWS.min(rows - first))?.contiguous();
            mixed(&all(&part(x)?, &part(&ids)?, experts)?, &part(&weights)?)
        })
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&parts, 0)
}

/// Experts and their factors, `[rows, top_k]` in float32, best first: softmax over all, the `top_k` largest, of equals the first.
fn routes(logits: &Tensor, params: &MoeParams) -> Result<(Tensor, Tensor)> {
    let columns = columns(logits.dim(1)?, logits.device())?;
    let mut p = softmax(logits)?;
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for _ in 0..params.top_k {
        let (weight, id) = best(&p, &columns)?;
        p = without(&p, &id, &columns)?;
        ids.push(id);
        weights.push(weight);
    }
    let weights = Tensor::cat(&weights, 1)?;
    let weights = if params.normalize {
        weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?
    } else {
        weights
    };
    Ok((Tensor::cat(&ids, 1)?, weights))
}

/// Each pair of row and expert with matrices of its own: `[rows, top_k, hidden]`.
fn gathered(x: &Tensor, ids: &Tensor, experts: &DeviceExperts) -> Result<Tensor> {
    let ((rows, hidden), top_k) = (x.dims2()?, ids.dim(1)?);
    let pairs = rows * top_k;
    let ids = ids.to_dtype(DType::U32)?.reshape(pairs)?;
    let x = x
        .unsqueeze(1)?
        .broadcast_as((rows, top_k, hidden))?
        .contiguous()?
        .reshape((pairs, 1, hidden))?;
    let product = |matrices: &Tensor, x: &Tensor| x.matmul(&matrices.index_select(&ids, 0)?.t()?);
    let inner = (product(&experts.gate, &x)?.silu()? * product(&experts.up, &x)?)?;
    product(&experts.down, &inner)?.reshape((rows, top_k, hidden))
}

/// All experts on all rows, then each row's own: `[rows, top_k, hidden]`.
fn all(x: &Tensor, ids: &Tensor, experts: &DeviceExperts) -> Result<Tensor> {
    let ((rows, _), top_k) = (x.dims2()?, ids.dim(1)?);
    let (count, width, hidden) = experts.sizes();
    let product = |matrices: &Tensor| {
        x.matmul(&matrices.reshape((count * width, hidden))?.t()?)?
            .reshape((rows, count, width))
    };
    let inner = (product(&experts.gate)?.silu()? * product(&experts.up)?)?;
    let y = inner
        .transpose(0, 1)?
        .contiguous()?
        .matmul(&experts.down.t()?)?
        .reshape((count * rows, hidden))?;
    #[expect(clippy::cast_precision_loss, reason = "at most ROWS")]
    let own_row = Tensor::arange(0f32, rows as f32, x.device())?.reshape((rows, 1))?;
    #[expect(clippy::cast_precision_loss, reason = "at most ROWS")]
    let places = ids.affine(rows as f64, 0.0)?.broadcast_add(&own_row)?;
    let places = places.to_dtype(DType::U32)?.reshape(rows * top_k)?;
    y.index_select(&places, 0)?.reshape((rows, top_k, hidden))
}

/// The sum over a row's experts, best first.
fn mixed(y: &Tensor, weights: &Tensor) -> Result<Tensor> {
    wide(y)?.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Numbers between -1 and 1 without a pattern that matters.
    fn tensor(shape: &[usize], seed: usize) -> Tensor {
        let count: usize = shape.iter().product();
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
        let data: Vec<f32> = (0..count).map(number).collect();
        Tensor::from_vec(data, shape, &Device::Cpu).expect("fits")
    }

    #[test]
    fn many_rows_equal_each_row_alone() {
        let (count, width, hidden, rows) = (8, 4, 6, 2 * ROWS + 5);
        let experts = DeviceExperts {
            gate: tensor(&[count, width, hidden], 1),
            up: tensor(&[count, width, hidden], 2),
            down: tensor(&[count, hidden, width], 3),
        };
        let (x, logits) = (tensor(&[rows, hidden], 4), tensor(&[rows, count], 5));
        let params = MoeParams {
            top_k: 3,
            normalize: true,
        };
        let numbers = |t: Tensor| t.to_vec2::<f32>().expect("rows");
        let together = numbers(moe(&x, &logits, &experts, &params).expect("fits"));
        assert_eq!(together.len(), rows);
        for (row, together) in together.iter().enumerate() {
            let one = |t: &Tensor| t.narrow(0, row, 1).expect("a row");
            let alone = numbers(moe(&one(&x), &one(&logits), &experts, &params).expect("fits"));
            let off = alone[0].iter().zip(together).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f32::max) < 1e-5, "row {row}");
        }
    }
}
