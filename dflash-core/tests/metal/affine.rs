//! Products with packed matrices: equal to the reference, every row equal to itself alone.

use dflash_core::DType;
use dflash_core::backend::Backend;
use dflash_core::backend::reference::Reference;
use dflash_core::checkpoint::{Bytes, StoredTensor, StoredType, WeightSource};
use dflash_core::metal::{AffineShape, Launch, affine_rows};

use super::host::{Buffer, Host, close, floats, random, tolerance};

/// Bits, group, the format of activations, that of scales and biases.
const PACKINGS: [(usize, usize, DType, DType); 6] = [
    (4, 32, DType::F32, DType::F32),
    (4, 64, DType::Bf16, DType::Bf16),
    (4, 128, DType::F32, DType::Bf16),
    (8, 32, DType::Bf16, DType::F32),
    (8, 64, DType::F32, DType::F32),
    (8, 128, DType::Bf16, DType::Bf16),
];
const ROWS: [usize; 6] = [1, 2, 5, 8, 9, 16];

fn launch(shape: &AffineShape, dtype: DType, factors: DType) -> Launch {
    affine_rows(shape, dtype, factors).expect("sizes that fit")
}

struct Case {
    shape: AffineShape,
    dtype: DType,
    factors: DType,
    x: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Case {
    fn new(shape: AffineShape, dtype: DType, factors: DType) -> Self {
        let AffineShape {
            rows,
            inputs,
            outputs,
            bits,
            group,
        } = shape;
        let mut seed = (inputs * 31 + outputs) as u64;
        let x = random(&mut seed, rows * inputs, dtype);
        let bytes = outputs * inputs * bits / 8;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a byte at random"
        )]
        let codes = random(&mut seed, bytes, DType::F32)
            .iter()
            .map(|x| ((x + 1.0) * 128.0) as u8)
            .collect();
        let groups = outputs * inputs / group;
        let scales = random(&mut seed, groups, factors);
        let biases = random(&mut seed, groups, factors);
        Self {
            shape,
            dtype,
            factors,
            x,
            codes,
            scales,
            biases,
        }
    }

    fn run(&self, host: &Host, first: usize, rows: usize) -> Vec<f32> {
        let shape = AffineShape { rows, ..self.shape };
        let x = &self.x[first * shape.inputs..][..rows * shape.inputs];
        let inputs: Vec<Buffer> = vec![
            floats(x, self.dtype),
            self.codes.clone(),
            floats(&self.scales, self.factors),
            floats(&self.biases, self.factors),
        ];
        let results = host.run(&launch(&shape, self.dtype, self.factors), &inputs);
        let [y] = <[Vec<f32>; 1]>::try_from(results).expect("one output");
        y
    }

    fn expected(&self) -> Vec<f32> {
        let AffineShape {
            rows,
            inputs,
            outputs,
            bits,
            group,
        } = self.shape;
        let stored = |dtype, shape: [usize; 2], bytes: &[u8]| StoredTensor {
            name: "weight".into(),
            dtype,
            shape: shape.to_vec(),
            bytes: Bytes::copied(bytes),
        };
        let factors = |numbers: &[f32]| {
            let bytes = floats(numbers, DType::F32);
            stored(StoredType::F32, [outputs, inputs / group], &bytes)
        };
        let b = Reference::new();
        let source = WeightSource::Affine {
            codes: stored(StoredType::U32, [outputs, inputs * bits / 32], &self.codes),
            scales: factors(&self.scales),
            biases: factors(&self.biases),
            bits: u8::try_from(bits).expect("4 or 8"),
            group,
            out: outputs,
            inp: inputs,
        };
        let weight = b.weight(source).expect("a matrix");
        let x = b.upload(&self.x, &[1, rows, inputs], DType::F32);
        let y = b
            .linear(&weight, &x.expect("rows"), None)
            .expect("a product");
        b.read(&y).expect("numbers")
    }
}

#[test]
fn products_equal_the_reference_and_their_rows() {
    let with = |rows, inputs, outputs, bits, group| AffineShape {
        rows,
        inputs,
        outputs,
        bits,
        group,
    };
    let mut launches = Vec::new();
    for (bits, group, dtype, factors) in PACKINGS {
        launches
            .extend(ROWS.map(|rows| launch(&with(rows, group, 1, bits, group), dtype, factors)));
    }
    let Some(host) = Host::build(&launches) else {
        return;
    };
    for (bits, group, dtype, factors) in PACKINGS {
        for rows in ROWS {
            for (inputs, outputs) in [(group, 5), (group * 3, 37), (group * 9, 16)] {
                let shape = with(rows, inputs, outputs, bits, group);
                let what = format!("{shape:?}, {dtype}");
                let case = Case::new(shape, dtype, factors);
                let y = case.run(&host, 0, rows);
                close(&what, &y, &case.expected(), tolerance(dtype));
                let alone: Vec<f32> = (0..rows).flat_map(|r| case.run(&host, r, 1)).collect();
                assert_eq!(alone, y, "{what}");
            }
        }
    }
}

#[test]
fn products_that_the_kernel_does_not_take_are_left_to_others() {
    let good = AffineShape {
        rows: 8,
        inputs: 256,
        outputs: 7,
        bits: 4,
        group: 64,
    };
    let taken = |shape: AffineShape| affine_rows(&shape, DType::Bf16, DType::Bf16).is_some();
    assert!(taken(good));
    for bad in [
        AffineShape { rows: 0, ..good },
        AffineShape { rows: 17, ..good },
        AffineShape { bits: 3, ..good },
        AffineShape { group: 16, ..good },
        AffineShape { inputs: 96, ..good },
        AffineShape {
            outputs: 1 << 24,
            ..good
        },
    ] {
        assert!(!taken(bad), "{bad:?}");
    }
}
