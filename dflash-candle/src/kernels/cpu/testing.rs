//! Helpers of the kernels' tests: every path of the machine, reproducible numbers, bit comparison.

use dflash_core::DType;

use super::{Cpu, Isa};

/// Shapes that do not divide by anything, and the sizes of small models.
pub(crate) const LENGTHS: [usize; 9] = [1, 3, 15, 17, 32, 33, 64, 192, 575];

/// A context for every instruction set and 1, 2 and 3 threads.
pub(crate) fn contexts() -> Vec<Cpu> {
    Isa::available()
        .into_iter()
        .flat_map(|isa| [1, 2, 3].map(|threads| Cpu::with_isa(isa, threads)))
        .collect()
}

/// One single-threaded context for every instruction set.
pub(crate) fn single() -> Vec<Cpu> {
    Isa::available()
        .into_iter()
        .map(|isa| Cpu::with_isa(isa, 1))
        .collect()
}

/// A reproducible stream of numbers in [-1, 1).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// Encodes numbers after one byte of padding, so that the bytes are not aligned, and returns the
/// numbers as the format holds them.
pub(crate) fn encode(values: &[f32], dtype: DType) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0xff];
    let mut held = Vec::new();
    for v in values {
        match dtype {
            DType::F32 => {
                bytes.extend(v.to_le_bytes());
                held.push(*v);
            }
            DType::Bf16 => {
                let h = half::bf16::from_f32(*v);
                bytes.extend(h.to_le_bytes());
                held.push(h.to_f32());
            }
            DType::F16 => {
                let h = half::f16::from_f32(*v);
                bytes.extend(h.to_le_bytes());
                held.push(h.to_f32());
            }
        }
    }
    (bytes, held)
}

/// Asserts equal bits.
#[track_caller]
pub(crate) fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            f.to_bits(),
            e.to_bits(),
            "{what}: element {i}: {f} is not bit-equal to {e}"
        );
    }
}

/// Asserts that numbers agree within `tolerance` times the given scale.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*f) - e).abs();
        assert!(
            error <= tolerance * (1.0 + e.abs()),
            "{what}: element {i}: {f} instead of {e}"
        );
    }
}
