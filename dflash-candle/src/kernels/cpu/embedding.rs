//! Reading rows of a weight matrix as numbers.

use std::marker::PhantomData;

use dflash_core::DType;

use super::isa::{Isa, Kernel};
use super::matrix::{Matrix, Numbers};
use super::simd::{LANES, Simd};
use super::tile::{Bf16, F16, F32, Format, STEP};
use super::{Cpu, Shared};

/// `out` `[ids, inner]` = the matrix's rows `ids`, widened and multiplied by `scale`.
///
/// # Panics
/// If an id is not below the number of rows, or `out` has another shape.
pub fn embedding(cpu: &Cpu, table: Matrix<'_>, ids: &[u32], scale: f32, out: &mut [f32]) {
    let inner = table.inner();
    assert_eq!(out.len(), ids.len() * inner, "invariant: a row per id");
    let all = Shared::new(out);
    cpu.split(ids.len(), 1, ids.len() * inner, |range| {
        cpu.isa.run(Ahead {
            table,
            ids: &ids[range.clone()],
        });
        for i in range {
            let id = ids[i] as usize;
            // SAFETY: every row belongs to one task.
            let out = unsafe { all.part(i * inner..(i + 1) * inner) };
            match table.numbers {
                Numbers::Plain { dtype, .. } => {
                    widen(cpu.isa, table.rows(id..id + 1), dtype, scale, out);
                }
                Numbers::Coded(codes) => codes.with_rows(cpu.isa, inner, id..id + 1, |row| {
                    let (steps, _) = out.as_chunks_mut::<STEP>();
                    for (out, row) in steps.iter_mut().zip(row.as_chunks::<STEP>().0) {
                        for i in 0..LANES {
                            let (a, b) = (row[i] * scale, row[LANES + i] * scale);
                            if codes.interleaved() {
                                (out[2 * i], out[2 * i + 1]) = (a, b);
                            } else {
                                (out[i], out[LANES + i]) = (a, b);
                            }
                        }
                    }
                }),
            }
        }
    });
}

/// Asks for the first line of each row: rows lie anywhere, and waiting for one after the other takes
/// longer than widening them.
struct Ahead<'a> {
    table: Matrix<'a>,
    ids: &'a [u32],
}

impl Kernel for Ahead<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for id in self.ids {
            let id = *id as usize;
            s.prefetch(self.table.rows(id..id + 1).as_ptr());
        }
    }
}

/// Widens little-endian numbers, possibly unaligned, and multiplies them by `scale`.
///
/// # Panics
/// If `bytes` does not hold as many numbers as `out`.
pub(crate) fn widen(isa: Isa, bytes: &[u8], dtype: DType, scale: f32, out: &mut [f32]) {
    assert_eq!(
        bytes.len(),
        out.len() * dtype.size(),
        "invariant: as many numbers as results"
    );
    match dtype {
        DType::F32 => isa.run(Widen::<F32> {
            bytes,
            scale,
            out,
            format: PhantomData,
        }),
        DType::Bf16 => isa.run(Widen::<Bf16> {
            bytes,
            scale,
            out,
            format: PhantomData,
        }),
        DType::F16 => isa.run(Widen::<F16> {
            bytes,
            scale,
            out,
            format: PhantomData,
        }),
    }
}

struct Widen<'a, W> {
    bytes: &'a [u8],
    scale: f32,
    out: &'a mut [f32],
    format: PhantomData<W>,
}

impl<W: Format> Kernel for Widen<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (steps, rest) = self.out.as_chunks_mut::<STEP>();
        for (i, out) in steps.iter_mut().enumerate() {
            // SAFETY: the caller checked that there are as many numbers as results.
            unsafe {
                widen_step::<S, W>(
                    s,
                    self.bytes.as_ptr().add(i * STEP * W::BYTES),
                    self.scale,
                    out,
                )
            };
        }
        if !rest.is_empty() {
            let mut bytes = [0_u8; 4 * STEP];
            let tail = &self.bytes[steps.len() * STEP * W::BYTES..];
            bytes[..tail.len()].copy_from_slice(tail);
            let mut out = [0.0; STEP];
            // SAFETY: the buffer holds a step of the widest format.
            unsafe { widen_step::<S, W>(s, bytes.as_ptr(), self.scale, &mut out) };
            rest.copy_from_slice(&out[..rest.len()]);
        }
    }
}

/// # Safety
/// `from` must be readable for a step.
#[inline(always)]
unsafe fn widen_step<S: Simd, W: Format>(s: S, from: *const u8, scale: f32, out: &mut [f32; STEP]) {
    // SAFETY: the caller vouches for a step.
    let (a, b) = unsafe { W::load(s, from) };
    let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
    s.store(&mut first, s.mul(a, s.splat(scale)));
    s.store(&mut second, s.mul(b, s.splat(scale)));
    if W::INTERLEAVED {
        for i in 0..LANES {
            (out[2 * i], out[2 * i + 1]) = (first[i], second[i]);
        }
    } else {
        out[..LANES].copy_from_slice(&first);
        out[LANES..].copy_from_slice(&second);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LENGTHS, Numbers, assert_bits, contexts, encode};
    use super::*;

    #[test]
    fn rows_are_gathered_exactly() {
        for cpu in contexts() {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                for inner in LENGTHS {
                    let mut values = Numbers::new(inner as u64).vec(11 * inner);
                    values[0] = 6e-8; // subnormal in f16
                    let (bytes, held) = encode(&values, dtype);
                    let table = Matrix::new(&bytes[1..], dtype, 11, inner);
                    let ids: Vec<u32> = (0..300).map(|i| i * 7 % 11).collect();
                    let mut out = vec![f32::NAN; ids.len() * inner];
                    embedding(&cpu, table, &ids, 1.5, &mut out);
                    let expected: Vec<f32> = ids
                        .iter()
                        .flat_map(|id| {
                            held[*id as usize * inner..(*id as usize + 1) * inner]
                                .iter()
                                .map(|x| x * 1.5)
                        })
                        .collect();
                    assert_bits(&out, &expected, &format!("{cpu:?} {dtype} {inner}"));
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_stay_what_they_are() {
        for cpu in contexts() {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let (bytes, _) = encode(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0], dtype);
                let mut out = [0.0; 4];
                widen(cpu.isa, &bytes[1..], dtype, 1.0, &mut out);
                assert_eq!((out[0], out[1]), (f32::INFINITY, f32::NEG_INFINITY));
                assert!(out[2].is_nan() && out[3].is_sign_negative());
            }
        }
    }
}
