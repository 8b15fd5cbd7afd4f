//! The gated delta rule over a block, and its replay.

use super::{Argument, Element, Kernel, Launch, int};
use crate::DType;

const INPUTS: &[Argument] = &[
    Argument::new("state", Element::F32),
    Argument::new("mixed", Element::Of("T")),
    Argument::new("decay", Element::Of("T")),
    Argument::new("strength", Element::Of("T")),
    Argument::new("a_log", Element::F32),
    Argument::new("dt_bias", Element::F32),
    Argument::new("sizes", Element::I32),
];
const CONSTANTS: &[&str] = &[
    "KEY_HEADS",
    "VALUE_HEADS",
    "KEY_DIM",
    "VALUE_DIM",
    "FEATURES",
];
const AFTER: Argument = Argument::new("after", Element::F32);

static STEP: Kernel = Kernel {
    name: "dflash_gated_delta",
    inputs: INPUTS,
    outputs: &[Argument::new("y", Element::Of("T")), AFTER],
    types: &["T"],
    constants: CONSTANTS,
    defines: &[],
    body: include_str!("gated_delta.metal"),
};
static REPLAY: Kernel = Kernel {
    name: "dflash_gated_delta_replay",
    inputs: INPUTS,
    outputs: &[AFTER],
    types: &["T"],
    constants: CONSTANTS,
    defines: &["DFLASH_STATE_ONLY"],
    body: include_str!("gated_delta.metal"),
};

/// Rows of a state that one simdgroup carries: with 128 key features 16 numbers per lane.
const FEATURES: usize = 4;
/// The largest key head; its state still fits into registers.
const MAX_KEY_DIM: usize = 256;

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Features per key head.
    pub key_dim: usize,
    /// Features per value head.
    pub value_dim: usize,
    /// Rows.
    pub rows: usize,
}

impl DeltaShape {
    fn fits(&self) -> bool {
        let channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim;
        self.key_heads > 0
            && self.value_heads > 0
            && self.value_heads.is_multiple_of(self.key_heads)
            && (1..=MAX_KEY_DIM).contains(&self.key_dim)
            && self.value_dim > 0
            && self.rows > 0
            && i32::try_from(channels.saturating_mul(self.rows)).is_ok()
    }

    fn launch(&self, kernel: &'static Kernel, dtype: DType, outputs: Vec<Vec<usize>>) -> Launch {
        Launch {
            kernel,
            types: vec![dtype],
            constants: vec![
                int(self.key_heads),
                int(self.value_heads),
                int(self.key_dim),
                int(self.value_dim),
                int(FEATURES),
            ],
            sizes: vec![int(self.rows)],
            grid: [32, self.value_dim.div_ceil(FEATURES), self.value_heads],
            group: [32, 4, 1],
            outputs,
        }
    }

    fn state(&self) -> Vec<usize> {
        vec![self.value_heads, self.value_dim, self.key_dim]
    }
}

/// [`Backend::gated_delta`](crate::backend::Backend::gated_delta) for activations of a format: outputs
/// `[1, rows, value_heads, value_dim]` and the state after the rows. `None` for sizes that it does not take.
pub fn gated_delta(shape: &DeltaShape, dtype: DType) -> Option<Launch> {
    let y = vec![1, shape.rows, shape.value_heads, shape.value_dim];
    shape
        .fits()
        .then(|| shape.launch(&STEP, dtype, vec![y, shape.state()]))
}

/// The state after recorded rows, without their outputs; the same bits as [`gated_delta`]'s.
pub fn gated_delta_replay(shape: &DeltaShape, dtype: DType) -> Option<Launch> {
    shape
        .fits()
        .then(|| shape.launch(&REPLAY, dtype, vec![shape.state()]))
}
