//! Codes that count steps from a bias.

use std::ops::Range;

use dflash_core::DType;

use super::store;
use crate::kernels::cpu::embedding::widen;
use crate::kernels::cpu::isa::{Isa, Kernel};
use crate::kernels::cpu::scratch::with_scratch;
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::tile::{STEP, packed_len};

/// Each `group` consecutive numbers of a row share a scale and a bias: `number = code * scale + bias`.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// Codes of `bits` bits; 32 of them take `bits` words.
    pub codes: &'a [u8],
    /// One factor per group.
    pub scales: &'a [u8],
    /// What is added, one per group.
    pub biases: &'a [u8],
    /// The format of scales and biases.
    pub factors: DType,
    /// Bits of a code: 1 to 6, or 8.
    pub bits: usize,
    /// Numbers per scale, a power of two from 32.
    pub group: usize,
}

impl Affine<'_> {
    /// # Panics
    /// If the sizes are not those of a matrix.
    pub(super) fn check(&self, outputs: usize, inner: usize) {
        assert!(
            matches!(self.bits, 1..=6 | 8)
                && self.group.is_power_of_two()
                && self.group >= STEP
                && inner.is_multiple_of(self.group),
            "invariant: rows are whole groups of whole words"
        );
        let factors = outputs * (inner / self.group) * self.factors.size();
        assert_eq!(
            [self.codes.len(), self.scales.len(), self.biases.len()],
            [outputs * (inner / 8 * self.bits), factors, factors],
            "invariant: a weight's bytes match its shape"
        );
    }

    /// Widens the rows `range`, whose codes are `codes`.
    pub(super) fn widen(
        self,
        isa: Isa,
        codes: &[u8],
        inner: usize,
        range: Range<usize>,
        out: &mut [f32],
    ) {
        let groups = inner / self.group;
        let count = range.len() * groups;
        with_scratch(2 * packed_len(count), |scratch| {
            let (scales, biases) = scratch.split_at_mut(packed_len(count));
            let (scales, biases) = (&mut scales[..count], &mut biases[..count]);
            let size = groups * self.factors.size();
            let bytes = range.start * size..range.end * size;
            widen(isa, &self.scales[bytes.clone()], self.factors, 1.0, scales);
            widen(isa, &self.biases[bytes], self.factors, 1.0, biases);
            let shift = (self.group / STEP).ilog2();
            // One kernel per width: a function that holds them all grows so large that the compiler
            // stops inlining single instructions into it.
            macro_rules! widths {
                ($($bits:literal)*) => {
                    match self.bits {
                        $($bits => isa.run(Apply::<$bits> { codes, scales, biases, shift, out }),)*
                        _ => unreachable!("invariant: `check` saw the width"),
                    }
                };
            }
            widths!(1 2 3 4 5 6 8)
        });
    }
}

/// The kernel that widens whole steps, `1 << shift` of which share a scale and a bias. Two roundings
/// per number, not a fused one: the widened number is then that of every backend.
struct Apply<'o, const BITS: usize> {
    codes: &'o [u8],
    scales: &'o [f32],
    biases: &'o [f32],
    shift: u32,
    out: &'o mut [f32],
}

impl<const BITS: usize> Kernel for Apply<'_, BITS> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (steps, _) = self.out.as_chunks_mut::<STEP>();
        let codes = self.codes.chunks_exact(4 * BITS);
        for (i, (out, codes)) in steps.iter_mut().zip(codes).enumerate() {
            let group = i >> self.shift;
            let (scale, bias) = (s.splat(self.scales[group]), s.splat(self.biases[group]));
            let (first, second) = load::<S, BITS>(s, codes, scale, bias);
            store(s, out, first, second);
        }
    }
}

/// The numbers of 32 codes.
#[inline(always)]
fn load<S: Simd, const BITS: usize>(s: S, from: &[u8], scale: S::V, bias: S::V) -> (S::V, S::V) {
    if BITS == 4 {
        let mut halves = [0; STEP / 2];
        halves.copy_from_slice(from);
        return s.load_affine4(&halves, scale, bias);
    }
    let (first, second) = if BITS == 8 {
        let mut codes = [0; STEP];
        codes.copy_from_slice(from);
        s.load_bytes(&codes)
    } else {
        s.load_octets::<BITS>(octets::<BITS>(from))
    };
    let (first, second) = (s.mul(first, scale), s.mul(second, scale));
    (s.add(first, bias), s.add(second, bias))
}

/// Four words whose lowest bits are eight codes each, of a step's words. Below seven bits eight codes lie in two of those.
#[inline(always)]
fn octets<const BITS: usize>(from: &[u8]) -> [u64; 4] {
    let mut words = [0_u32; 8];
    for (word, bytes) in words.iter_mut().zip(from.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let mut octets = [0; 4];
    for (k, octet) in octets.iter_mut().enumerate() {
        let (word, shift) = (k * BITS / 4, k * BITS % 4 * 8);
        *octet = (u64::from(words[word]) | u64::from(words[word + 1]) << 32) >> shift;
    }
    octets
}
