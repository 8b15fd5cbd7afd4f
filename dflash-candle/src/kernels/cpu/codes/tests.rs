use dflash_core::DType;
use dflash_core::checkpoint::SmallFloat;

use super::*;
use crate::kernels::cpu::testing::{Numbers, assert_bits, assert_close, contexts, encode, single};
use crate::kernels::cpu::{
    Activation, Affine, Cpu, Expert, Matrix, Routes, SmallFloats, embedding, glu, glu_in_place,
    linear, moe,
};

/// A stored matrix and the numbers that it stands for.
struct Sample {
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    kind: Kind,
    shape: (usize, usize),
    numbers: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Affine(usize, usize, DType),
    Small(SmallFloat),
}

impl Sample {
    fn new(bits: usize, group: usize, dtype: DType, outputs: usize, inner: usize) -> Self {
        let mut random = Numbers::new((bits * group + outputs * inner) as u64);
        let codes = bytes(&mut random, outputs * inner * bits / 8);
        let groups = outputs * inner / group;
        let step = 1.0 / (1 << bits) as f32;
        let scales: Vec<f32> = random.vec(groups).iter().map(|x| x * step).collect();
        let (scales, wide_scales) = encode(&scales, dtype);
        let (biases, wide_biases) = encode(&random.vec(groups), dtype);
        let numbers = (0..outputs * inner)
            .map(|i| {
                let code = code(&codes[1..], i, bits);
                f32::from(code) * wide_scales[i / group] + wide_biases[i / group]
            })
            .collect();
        Self {
            codes,
            scales,
            biases,
            kind: Kind::Affine(bits, group, dtype),
            shape: (outputs, inner),
            numbers,
        }
    }

    /// Every code that is a number, and scales around one.
    fn small(format: SmallFloat, outputs: usize, inner: usize) -> Self {
        let mut random = Numbers::new((outputs * inner) as u64);
        let mut codes = bytes(&mut random, outputs * inner * format.bits() / 8);
        let mut scales = bytes(&mut random, outputs * inner / format.group());
        let one = format.scale_at_most(1.0).expect("there is one");
        scales.iter_mut().for_each(|s| *s = one - 20 + *s % 40);
        if format == SmallFloat::Mxfp8 {
            let numbers = codes.iter_mut().filter(|c| **c & 0x7f == 0x7f);
            numbers.for_each(|c| *c ^= 1);
        }
        let numbers = (0..outputs * inner)
            .map(|i| {
                let number = format.number(code(&codes[1..], i, format.bits()));
                number * format.scale(scales[1 + i / format.group()])
            })
            .collect();
        Self {
            codes,
            scales,
            biases: Vec::new(),
            kind: Kind::Small(format),
            shape: (outputs, inner),
            numbers,
        }
    }

    fn codes(&self) -> Codes<'_> {
        let (codes, scales) = (&self.codes[1..], &self.scales[1..]);
        match self.kind {
            Kind::Affine(bits, group, factors) => Codes::Affine(Affine {
                codes,
                scales,
                biases: &self.biases[1..],
                factors,
                bits,
                group,
            }),
            Kind::Small(format) => Codes::SmallFloats(SmallFloats {
                codes,
                scales,
                format,
            }),
        }
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::coded(self.codes(), self.shape.0, self.shape.1)
    }

    /// Numbers in the order in which products take this matrix's.
    fn ordered(&self, numbers: &[f32]) -> Vec<f32> {
        ordered(self.codes().interleaved(), numbers)
    }

    /// The widened matrix as a file of f32 holds it, in that order.
    fn wide(&self) -> Vec<u8> {
        let numbers = self.ordered(&self.numbers);
        numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

/// Random bytes behind one more, so that they are not aligned.
fn bytes(random: &mut Numbers, count: usize) -> Vec<u8> {
    (0..=count)
        .map(|_| (random.next() * 128.0 + 128.0) as u8)
        .collect()
}

/// Code `i` of a stream, bit by bit.
fn code(stream: &[u8], i: usize, bits: usize) -> u8 {
    (0..bits).fold(0, |code, bit| {
        let at = i * bits + bit;
        code | (stream[at / 8] >> (at % 8) & 1) << bit
    })
}

/// The even places of each 32, then the odd ones.
fn ordered(interleaved: bool, numbers: &[f32]) -> Vec<f32> {
    let place = |i: usize| i / 32 * 32 + 2 * (i % 16) + i / 16 % 2;
    (0..numbers.len())
        .map(|i| numbers[if interleaved { place(i) } else { i }])
        .collect()
}

const FORMATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

#[test]
fn codes_are_widened_exactly_by_every_instruction_set() {
    let widths = [1, 2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    let affine = widths
        .flat_map(|(bits, group)| FORMATS.map(|dtype| Sample::new(bits, group, dtype, 11, 384)));
    let small = SmallFloat::ALL.map(|format| Sample::small(format, 11, 384));
    for sample in affine.chain(small) {
        for cpu in single() {
            let what = format!("{cpu:?}, {:?}", sample.kind);
            let expected = sample.ordered(&sample.numbers[2 * 384..9 * 384]);
            sample.codes().with_rows(cpu.isa(), 384, 2..9, |rows| {
                assert_bits(rows, &expected, &what);
            });
            let mut out = vec![0.0; 3 * 384];
            embedding(&cpu, sample.matrix(), &[10, 0, 10], 0.5, &mut out);
            let expected: Vec<f32> = [10, 0, 10]
                .iter()
                .flat_map(|id| &sample.numbers[id * 384..(id + 1) * 384])
                .map(|x| x * 0.5)
                .collect();
            assert_bits(&out, &expected, &what);
        }
    }
}

/// The ends of the scales' range, and what is not a number.
#[test]
fn extreme_small_floats_are_what_they_are() {
    let wide = |cpu: &Cpu, format, codes: &[u8], scales: &[u8]| {
        let floats = SmallFloats {
            codes,
            scales,
            format,
        };
        let matrix = Matrix::coded(Codes::SmallFloats(floats), 1, 32);
        let mut row = vec![0.0; 32];
        embedding(cpu, matrix, &[0], 1.0, &mut row);
        row
    };
    for cpu in single() {
        for format in SmallFloat::ALL {
            let codes: Vec<u8> = (0..4 * format.bits() as u8)
                .map(|i| i.wrapping_mul(37))
                .collect();
            for scale in [0, 1, 2, 0x7e, 0x7f, 0xfe, 0xff] {
                let scales = [scale, 0x38];
                let row = wide(&cpu, format, &codes, &scales[..32 / format.group()]);
                for (i, found) in row.iter().enumerate() {
                    let number = format.number(code(&codes, i, format.bits()));
                    let expected = number * format.scale(scales[i / format.group()]);
                    assert!(
                        found.to_bits() == expected.to_bits()
                            || found.is_nan() && expected.is_nan(),
                        "{cpu:?} {format:?}, scale {scale}, {i}: {found} instead of {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    let inner = 256;
    let x = Numbers::new(3).vec(64 * inner);
    for outputs in [1, 13, 300] {
        let widths = [2, 3, 4, 5, 6, 8].map(|bits| [32, 64, 128].map(|group| (bits, group)));
        let affine = widths
            .into_iter()
            .flatten()
            .map(|(bits, group)| Sample::new(bits, group, DType::Bf16, outputs, inner));
        let small = SmallFloat::ALL.map(|format| Sample::small(format, outputs, inner));
        for sample in affine.chain(small) {
            for isa in Isa::available() {
                let one = Cpu::with_isa(isa, 1);
                let alone: Vec<f32> = x
                    .chunks(inner)
                    .flat_map(|x| linear(&one, x, 1, sample.matrix(), None))
                    .collect();
                for threads in 1..=3 {
                    let cpu = Cpu::with_isa(isa, threads);
                    for rows in (1..=16).chain([64]) {
                        let out = linear(&cpu, &x[..rows * inner], rows, sample.matrix(), None);
                        assert_bits(
                            &out,
                            &alone[..rows * outputs],
                            &format!("{cpu:?} {:?}, {rows}x{outputs}", sample.kind),
                        );
                    }
                }
            }
        }
    }
}

/// Rows in several blocks, columns that end inside a tile, and a bias.
#[test]
fn a_product_has_the_bits_of_the_widened_matrix() {
    for (bits, group, rows, outputs, inner) in [
        (4, 64, 1, 37, 4096),
        (4, 64, 3, 37, 4096),
        (3, 32, 60, 21, 4096),
        (8, 128, 260, 16, 768),
    ] {
        let sample = Sample::new(bits, group, DType::F16, outputs, inner);
        let (wide, mut random) = (sample.wide(), Numbers::new(5));
        let (x, bias) = (random.vec(rows * inner), random.vec(outputs));
        let ordered_x = sample.ordered(&x);
        let wide = Matrix::new(&wide, DType::F32, outputs, inner);
        for cpu in contexts() {
            assert_bits(
                &linear(&cpu, &x, rows, sample.matrix(), Some(&bias)),
                &linear(&cpu, &ordered_x, rows, wide, Some(&bias)),
                &format!("{cpu:?} {bits} bits, {rows}x{inner}x{outputs}"),
            );
        }
        let expected: Vec<f64> = (0..rows * outputs)
            .map(|i| {
                let (x, w) = (
                    &x[i / outputs * inner..],
                    &sample.numbers[i % outputs * inner..],
                );
                let products = x.iter().zip(w).take(inner);
                let dot: f64 = products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                dot + f64::from(bias[i % outputs])
            })
            .collect();
        let found = linear(&Cpu::new(2), &x, rows, sample.matrix(), Some(&bias));
        assert_close(&found, &expected, 1e-4, &format!("{bits} bits"));
    }
}

/// Gate and up may be stored differently, and so may the experts of a layer.
#[test]
fn gates_and_experts_have_the_bits_of_their_parts() {
    let (hidden, width, rows) = (128, 96, 9);
    let samples: Vec<[Sample; 3]> = [(4, 64), (8, 32), (5, 32)]
        .into_iter()
        .zip(SmallFloat::ALL)
        .map(|((bits, group), format)| {
            [
                Sample::new(bits, group, DType::Bf16, width, hidden),
                Sample::small(format, width, hidden),
                Sample::new(bits, 32, DType::F32, hidden, width),
            ]
        })
        .collect();
    let experts: Vec<Expert<'_>> = samples
        .iter()
        .map(|[gate, up, down]| Expert {
            gate: gate.matrix(),
            up: up.matrix(),
            down: down.matrix(),
        })
        .collect();
    let mut random = Numbers::new(11);
    let (x, weights) = (random.vec(rows * hidden), random.vec(2 * rows));
    let ids: Vec<u32> = (0..2 * rows as u32).map(|i| i * i % 3).collect();
    for cpu in contexts() {
        let what = format!("{cpu:?}");
        let parts = |x: &[f32], rows, gate, up| {
            let mut gated = linear(&cpu, x, rows, gate, None);
            let ups = linear(&cpu, x, rows, up, None);
            glu_in_place(&cpu, Activation::Silu, &mut gated, &ups);
            gated
        };
        let (wide, _) = encode(&random.vec(width * hidden), DType::Bf16);
        let wide = Matrix::new(&wide[1..], DType::Bf16, width, hidden);
        for Expert { gate, up, .. } in &experts {
            for (gate, up) in [(*gate, *up), (*gate, wide), (wide, *up)] {
                let fused = glu(&cpu, &x, rows, gate, up, Activation::Silu);
                assert_bits(&fused, &parts(&x, rows, gate, up), &what);
            }
        }
        let mut expected = vec![0.0; rows * hidden];
        for (i, (id, weight)) in ids.iter().zip(&weights).enumerate() {
            let Expert { gate, up, down } = experts[*id as usize];
            let row = i / 2 * hidden..(i / 2 + 1) * hidden;
            let gated = parts(&x[row.clone()], 1, gate, up);
            let result = linear(&cpu, &gated, 1, down, None);
            for (sum, r) in expected[row].iter_mut().zip(result) {
                *sum += weight * r;
            }
        }
        let routes = Routes {
            per_row: 2,
            ids: &ids,
            weights: &weights,
        };
        let mut out = vec![f32::NAN; rows * hidden];
        moe(&cpu, &x, rows, routes, &experts, Activation::Silu, &mut out);
        assert_bits(&out, &expected, &what);
    }
}
