//! A mixture of experts without asking the host which experts were chosen.

use dflash_core::backend::MoeParams;
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::{argsort_axis, softmax_axis, sum_axis};

use crate::array::{cast, int, part, silu, size, wide};
use crate::weight::{MlxExperts, Place};

/// The weighted outputs of each row's experts: `x` `[1, rows, hidden]`, router `logits` `[1, rows, experts]`.
pub(crate) fn moe(
    x: &Array,
    logits: &Array,
    experts: &MlxExperts,
    params: &MoeParams,
    place: Place,
) -> Result<Array, Exception> {
    let (rows, hidden) = (size(x, 1), size(x, 2));
    let p = softmax_axis(
        wide(logits)?.reshape(&[int(rows), int(experts.count)])?,
        -1,
        true,
    )?;
    // Equal probabilities keep the order of their experts.
    let ids = part(&argsort_axis(p.negative()?, -1)?, 1, 0, params.top_k)?;
    let mut weights = p.take_along_axis(&ids, -1)?;
    if params.normalize {
        weights = weights.divide(sum_axis(&weights, -1, true)?)?;
    }
    // What lies between an expert's products is not rounded to the activations' format.
    let rows_apart = wide(x)?.reshape(&[int(rows), 1, 1, int(hidden)])?;
    let gate = silu(&experts.gate.product_of(&rows_apart, &ids)?, place)?;
    let inner = gate.multiply(experts.up.product_of(&rows_apart, &ids)?)?;
    let y = experts.down.product_of(&inner, &ids)?;
    let weights = weights.reshape(&[int(rows), int(params.top_k), 1, 1])?;
    let sum = sum_axis(y.multiply(weights)?, 1, false)?;
    cast(&sum.reshape(&[1, int(rows), int(hidden)])?, x.dtype())
}
