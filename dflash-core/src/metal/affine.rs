//! Products with packed matrices.

use super::{Argument, Element, Kernel, Launch, int};
use crate::DType;

static PRODUCT: Kernel = Kernel {
    name: "dflash_affine_rows",
    inputs: &[
        Argument::new("x", Element::Of("T")),
        Argument::new("codes", Element::U32),
        Argument::new("scales", Element::Of("S")),
        Argument::new("biases", Element::Of("S")),
        Argument::new("sizes", Element::I32),
    ],
    outputs: &[Argument::new("y", Element::Of("T"))],
    types: &["T", "S"],
    constants: &["ROWS", "BITS", "GROUP", "OUTPUTS"],
    defines: &[],
    body: include_str!("affine.metal"),
};

/// Rows of one call at most: their sums are held in registers.
const MAX_ROWS: usize = 16;

/// Sizes of one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffineShape {
    /// Rows of activations.
    pub rows: usize,
    /// Features of a row.
    pub inputs: usize,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Bits per code.
    pub bits: usize,
    /// Inputs per scale and bias.
    pub group: usize,
}

/// `x` `[1, rows, inputs]` times a matrix packed as
/// [`WeightSource::Affine`](crate::checkpoint::WeightSource::Affine) says, whose scales and biases have the format
/// `factors`: `[1, rows, outputs]`. Takes 1 to 16 rows, 4 or 8 bits and groups of 32, 64 or 128; `None` for others.
pub fn affine_rows(shape: &AffineShape, dtype: DType, factors: DType) -> Option<Launch> {
    let &AffineShape {
        rows,
        inputs,
        outputs,
        bits,
        group,
    } = shape;
    let fits = (1..=MAX_ROWS).contains(&rows)
        && matches!(bits, 4 | 8)
        && matches!(group, 32 | 64 | 128)
        && inputs > 0
        && inputs.is_multiple_of(group)
        && outputs > 0
        && i32::try_from(outputs.saturating_mul(inputs)).is_ok()
        && i32::try_from(outputs.saturating_mul(rows)).is_ok();
    // Sums, weights and activations of a lane together stay near a hundred registers.
    let together: usize = if rows > 8 { 2 } else { 4 };
    fits.then(|| Launch {
        kernel: &PRODUCT,
        types: vec![dtype, factors],
        constants: vec![int(rows), int(bits), int(group), int(together)],
        sizes: vec![int(inputs), int(outputs)],
        grid: [32, outputs.div_ceil(together), 1],
        group: [32, 4, 1],
        outputs: vec![vec![1, rows, outputs]],
    })
}
