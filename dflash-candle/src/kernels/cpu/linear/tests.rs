use dflash_core::DType;

use super::*;
use crate::kernels::cpu::testing::{LENGTHS, Numbers, assert_bits, assert_close, contexts, encode};

const FORMATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

#[test]
fn products_match_a_naive_sum() {
    for cpu in contexts() {
        for dtype in FORMATS {
            for inner in LENGTHS {
                for (rows, outputs) in
                    [(1, 1), (1, 13), (2, 8), (3, 17), (7, 5), (16, 33), (17, 40)]
                {
                    let mut numbers = Numbers::new(inner as u64);
                    let x = numbers.vec(rows * inner);
                    let (bytes, w) = encode(&numbers.vec(outputs * inner), dtype);
                    let bias = numbers.vec(outputs);
                    let out = linear(
                        &cpu,
                        &x,
                        rows,
                        Matrix::new(&bytes[1..], dtype, outputs, inner),
                        Some(&bias),
                    );
                    let expected: Vec<f64> = (0..rows * outputs)
                        .map(|i| {
                            let (r, o) = (i / outputs, i % outputs);
                            let dot: f64 = (0..inner)
                                .map(|k| f64::from(x[r * inner + k]) * f64::from(w[o * inner + k]))
                                .sum();
                            dot + f64::from(bias[o])
                        })
                        .collect();
                    assert_close(
                        &out,
                        &expected,
                        1e-5,
                        &format!("{cpu:?} {dtype} {rows}x{inner}x{outputs}"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    for dtype in FORMATS {
        for inner in [1, 17, 33, 192, 575] {
            for outputs in [1, 7, 30, 64, 700] {
                let mut numbers = Numbers::new(7);
                let x = numbers.vec(300 * inner);
                let (bytes, _) = encode(&numbers.vec(outputs * inner), dtype);
                let weight = Matrix::new(&bytes[1..], dtype, outputs, inner);
                for isa in crate::kernels::cpu::Isa::available() {
                    let one = Cpu::with_isa(isa, 1);
                    let alone: Vec<f32> = x
                        .chunks(inner)
                        .flat_map(|x| linear(&one, x, 1, weight, None))
                        .collect();
                    for threads in [1, 2, 3] {
                        let cpu = Cpu::with_isa(isa, threads);
                        for rows in (1..=17).chain([64, 300]) {
                            let out = linear(&cpu, &x[..rows * inner], rows, weight, None);
                            assert_bits(
                                &out,
                                &alone[..rows * outputs],
                                &format!("{cpu:?} {dtype} {rows}x{inner}x{outputs}"),
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn instruction_sets_with_fused_arithmetic_agree() {
    let fused: Vec<Cpu> = crate::kernels::cpu::testing::single()
        .into_iter()
        .filter(|c| c.isa() != crate::kernels::cpu::Isa::portable())
        .collect();
    let mut numbers = Numbers::new(9);
    let (rows, inner, outputs) = (5, 575, 37);
    let x = numbers.vec(rows * inner);
    for dtype in FORMATS {
        let (bytes, _) = encode(&numbers.vec(outputs * inner), dtype);
        let results: Vec<Vec<f32>> = fused
            .iter()
            .map(|cpu| {
                let weight = Matrix::new(&bytes[1..], dtype, outputs, inner);
                linear(cpu, &x, rows, weight, None)
            })
            .collect();
        for result in &results {
            assert_bits(result, &results[0], &format!("{dtype}"));
        }
    }
}

#[test]
fn the_fused_gate_equals_its_parts() {
    let mut numbers = Numbers::new(4);
    let (inner, outputs) = (96, 200);
    let x = numbers.vec(20 * inner);
    for (gate_type, up_type) in [(DType::Bf16, DType::Bf16), (DType::F32, DType::Bf16)] {
        let gate = encode(&numbers.vec(outputs * inner), gate_type).0;
        let up = encode(&numbers.vec(outputs * inner), up_type).0;
        let (gate, up) = (
            Matrix::new(&gate[1..], gate_type, outputs, inner),
            Matrix::new(&up[1..], up_type, outputs, inner),
        );
        for cpu in contexts() {
            for act in [Activation::Silu, Activation::GeluTanh] {
                for rows in [1, 2, 7, 20] {
                    let x = &x[..rows * inner];
                    let fused = glu(&cpu, x, rows, gate, up, act);
                    let mut a = linear(&cpu, x, rows, gate, None);
                    let b = linear(&cpu, x, rows, up, None);
                    crate::kernels::cpu::glu_in_place(&cpu, act, &mut a, &b);
                    assert_bits(&fused, &a, &format!("{cpu:?} {act:?} {rows}"));
                }
            }
        }
    }
}

#[test]
fn nothing_to_do_is_done() {
    let cpu = Cpu::new(1);
    let none = Matrix::new(&[], DType::F32, 0, 4);
    assert!(linear(&cpu, &[], 0, none, None).is_empty());
    assert!(glu(&cpu, &[], 0, none, none, Activation::Silu).is_empty());
    let empty = Matrix::new(&[], DType::Bf16, 2, 0);
    let sums = linear(&cpu, &[], 1, empty, None);
    assert_eq!(sums, [0.0; 2], "an empty sum is zero");
}
