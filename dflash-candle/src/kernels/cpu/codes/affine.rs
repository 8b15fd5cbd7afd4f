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
    /// Bits of a code, 1 to 8.
    pub bits: usize,
    /// Numbers per scale, a multiple of 32.
    pub group: usize,
}

impl Affine<'_> {
    /// # Panics
    /// If the sizes are not those of a matrix.
    pub(super) fn check(&self, outputs: usize, inner: usize) {
        assert!(
            (1..=8).contains(&self.bits)
                && self.group > 0
                && self.group.is_multiple_of(STEP)
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
            let group = self.group;
            // One kernel per width: a function that holds them all grows so large that the compiler
            // stops inlining single instructions into it.
            macro_rules! widths {
                ($($bits:literal)*) => {
                    match self.bits {
                        $($bits => isa.run(Apply::<$bits> { codes, scales, biases, group, out }),)*
                        _ => unreachable!("invariant: `check` saw the width"),
                    }
                };
            }
            widths!(1 2 3 4 5 6 7 8)
        });
    }
}

/// The kernel that widens whole groups. Two roundings per number, not a fused one: the widened number is then that of every backend.
struct Apply<'o, const BITS: usize> {
    codes: &'o [u8],
    scales: &'o [f32],
    biases: &'o [f32],
    group: usize,
    out: &'o mut [f32],
}

impl<const BITS: usize> Kernel for Apply<'_, BITS> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let steps = self.group / STEP;
        let groups = self
            .out
            .as_chunks_mut::<STEP>()
            .0
            .chunks_exact_mut(steps)
            .zip(self.codes.chunks_exact(steps * 4 * BITS))
            .zip(self.scales.iter().zip(self.biases));
        for ((out, codes), (scale, bias)) in groups {
            let (scale, bias) = (s.splat(*scale), s.splat(*bias));
            for (out, codes) in out.iter_mut().zip(codes.chunks_exact(4 * BITS)) {
                let (first, second) = load::<S, BITS>(s, codes);
                let (first, second) = (s.mul(first, scale), s.mul(second, scale));
                store(s, out, s.add(first, bias), s.add(second, bias));
            }
        }
    }
}

/// 32 codes as numbers.
#[inline(always)]
fn load<S: Simd, const BITS: usize>(s: S, from: &[u8]) -> (S::V, S::V) {
    let mut codes = [0; STEP];
    if BITS == 4 {
        let mut halves = [0; STEP / 2];
        halves.copy_from_slice(from);
        return s.load_nibbles(&halves);
    }
    if BITS == 8 {
        codes.copy_from_slice(from);
        return s.load_bytes(&codes);
    }
    for (eight, from) in codes
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(from.chunks_exact(BITS))
    {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(from);
        *eight = spread::<BITS>(u64::from_le_bytes(word)).to_le_bytes();
    }
    s.load_bytes(&codes)
}

/// The eight lowest codes of a word, one per byte: its halves are moved apart, then their halves, then theirs.
#[inline(always)]
const fn spread<const BITS: usize>(word: u64) -> u64 {
    let mut x = word;
    x = x & const { lanes(2, 4 * BITS) }
        | (x << (32 - 4 * BITS)) & const { lanes(2, 4 * BITS) << 32 };
    x = x & const { lanes(4, 2 * BITS) }
        | (x << (16 - 2 * BITS)) & const { lanes(4, 2 * BITS) << 16 };
    x & const { lanes(8, BITS) } | (x << (8 - BITS)) & const { lanes(8, BITS) << 8 }
}

/// The lowest `bits` bits of every other one of `count` equal parts of a word.
const fn lanes(count: usize, bits: usize) -> u64 {
    let mut all = 0;
    let mut lane = 0;
    while lane < count {
        all |= ((1 << bits) - 1) << (lane * 64 / count);
        lane += 2;
    }
    all
}
