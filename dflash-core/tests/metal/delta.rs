//! The gated delta rule: equal to the reference, a block equal to its rows, a replay equal to a shorter block.

use dflash_core::DType;
use dflash_core::backend::reference::{RefTensor, Reference};
use dflash_core::backend::{Backend, DeltaParams};
use dflash_core::metal::{DeltaShape, Launch, gated_delta, gated_delta_replay};

use super::host::{Buffer, Host, close, floats, random, tolerance};

const FORMATS: [DType; 2] = [DType::F32, DType::Bf16];

/// Key heads, value heads, key and value features.
const HEADS: [[usize; 4]; 5] = [
    [1, 2, 128, 128],
    [2, 2, 64, 64],
    [1, 1, 256, 128],
    [1, 3, 192, 10],
    [2, 6, 20, 3],
];
const ROWS: [usize; 4] = [1, 3, 8, 16];

#[derive(Debug)]
struct Case {
    shape: DeltaShape,
    dtype: DType,
    state: Vec<f32>,
    mixed: Vec<f32>,
    decay: Vec<f32>,
    strength: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
}

fn shape([key_heads, value_heads, key_dim, value_dim]: [usize; 4], rows: usize) -> DeltaShape {
    DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        rows,
    }
}

fn step(shape: &DeltaShape, dtype: DType) -> Launch {
    gated_delta(shape, dtype).expect("sizes that fit")
}

fn replay(shape: &DeltaShape, dtype: DType) -> Launch {
    gated_delta_replay(shape, dtype).expect("sizes that fit")
}

impl Case {
    fn new(shape: DeltaShape, dtype: DType, mut seed: u64) -> Self {
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            rows,
        } = shape;
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        let mut numbers = |count, dtype| random(&mut seed, count, dtype);
        Self {
            shape,
            dtype,
            state: numbers(value_heads * value_dim * key_dim, DType::F32),
            mixed: numbers(rows * channels, dtype),
            decay: numbers(rows * value_heads, dtype),
            strength: numbers(rows * value_heads, dtype),
            a_log: numbers(value_heads, DType::F32),
            dt_bias: numbers(value_heads, DType::F32),
        }
    }

    /// The inputs of rows `first ..`, from a state.
    fn inputs(&self, state: &[f32], first: usize, rows: usize) -> Vec<Buffer> {
        let part = |numbers: &[f32]| {
            let width = numbers.len() / self.shape.rows;
            floats(&numbers[first * width..][..rows * width], self.dtype)
        };
        vec![
            floats(state, DType::F32),
            part(&self.mixed),
            part(&self.decay),
            part(&self.strength),
            floats(&self.a_log, DType::F32),
            floats(&self.dt_bias, DType::F32),
        ]
    }

    fn run(&self, host: &Host, state: &[f32], first: usize, rows: usize) -> [Vec<f32>; 2] {
        let launch = step(&DeltaShape { rows, ..self.shape }, self.dtype);
        let results = host.run(&launch, &self.inputs(state, first, rows));
        results.try_into().expect("two outputs")
    }

    fn expected(&self) -> [Vec<f32>; 2] {
        let b = Reference::new();
        let tensor = |numbers: &[f32], shape: &[usize]| -> RefTensor {
            b.upload(numbers, shape, DType::F32)
                .expect("as many numbers")
        };
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            rows,
        } = self.shape;
        let params = DeltaParams {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps: 4,
            a_log: tensor(&self.a_log, &[value_heads]),
            dt_bias: tensor(&self.dt_bias, &[value_heads]),
        };
        let (y, state) = b
            .gated_delta(
                &tensor(&self.state, &[value_heads, value_dim, key_dim]),
                &tensor(&self.mixed, &[1, rows, params.channels()]),
                &tensor(&self.decay, &[1, rows, value_heads]),
                &tensor(&self.strength, &[1, rows, value_heads]),
                &params,
            )
            .expect("sizes that fit");
        [y, state].map(|t| b.read(&t).expect("numbers"))
    }
}

#[test]
fn a_block_equals_the_reference_and_its_own_rows() {
    let launches: Vec<Launch> = FORMATS
        .into_iter()
        .flat_map(|dtype| {
            HEADS.map(|heads| {
                [
                    step(&shape(heads, 1), dtype),
                    replay(&shape(heads, 1), dtype),
                ]
            })
        })
        .flatten()
        .collect();
    let Some(host) = Host::build(&launches) else {
        return;
    };
    for dtype in FORMATS {
        for heads in HEADS {
            for rows in ROWS {
                let what = format!("{heads:?}, {rows} rows, {dtype}");
                let case = Case::new(shape(heads, rows), dtype, rows as u64);
                let [y, state] = case.run(&host, &case.state, 0, rows);
                let [expected_y, expected_state] = case.expected();
                close(&what, &y, &expected_y, tolerance(dtype));
                close(&what, &state, &expected_state, tolerance(DType::F32));

                // Row by row: the same bits.
                let (mut chain, mut last) = (Vec::new(), case.state.clone());
                let mut states = Vec::new();
                for row in 0..rows {
                    let [y, after] = case.run(&host, &last, row, 1);
                    chain.extend(y);
                    last = after;
                    states.push(last.clone());
                }
                assert_eq!((&chain, &last), (&y, &state), "{what}");

                // Replaying recorded rows: the bits of the state after them.
                for kept in [1, rows.div_ceil(2), rows] {
                    let launch = replay(
                        &DeltaShape {
                            rows: kept,
                            ..case.shape
                        },
                        dtype,
                    );
                    let found = host.run(&launch, &case.inputs(&case.state, 0, kept));
                    assert_eq!(found, [states[kept - 1].clone()], "{what}, {kept} kept");
                }
            }
        }
    }
}

#[test]
fn another_decay_is_noticed() {
    let shape = shape(HEADS[0], 3);
    let Some(host) = Host::build(&[step(&shape, DType::F32)]) else {
        return;
    };
    let mut case = Case::new(shape, DType::F32, 1);
    let [expected, _] = case.expected();
    case.dt_bias[1] += 0.05;
    let [y, _] = case.run(&host, &case.state, 0, 3);
    let caught =
        std::panic::catch_unwind(|| close("spoiled", &y, &expected, tolerance(DType::F32)));
    assert!(caught.is_err(), "a spoiled input passes");
}

#[test]
fn sizes_that_the_kernel_does_not_take_are_left_to_others() {
    let good = shape([2, 4, 128, 128], 8);
    assert!(gated_delta(&good, DType::Bf16).is_some());
    for bad in [
        DeltaShape {
            key_dim: 288,
            ..good
        },
        DeltaShape { key_dim: 0, ..good },
        DeltaShape {
            key_heads: 3,
            ..good
        },
        DeltaShape { rows: 0, ..good },
        DeltaShape {
            rows: 1 << 24,
            ..good
        },
    ] {
        assert!(gated_delta(&bad, DType::Bf16).is_none(), "{bad:?}");
        assert!(gated_delta_replay(&bad, DType::Bf16).is_none(), "{bad:?}");
    }
}
