//! Codes that are floats of four or eight bits.

use std::marker::PhantomData;
use std::ops::Range;

use dflash_core::checkpoint::{SmallFloat, e8m0};

use super::store;
use crate::kernels::cpu::isa::{Isa, Kernel};
use crate::kernels::cpu::scratch::with_scratch;
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::tile::{STEP, packed_len};

/// Each group of consecutive numbers of a row shares a scale: `number = float(code) * scale`.
#[derive(Debug, Clone, Copy)]
pub struct SmallFloats<'a> {
    /// The codes; 32 of them take as many words as a code has bits.
    pub codes: &'a [u8],
    /// One byte per group.
    pub scales: &'a [u8],
    /// What codes and scales stand for.
    pub format: SmallFloat,
}

impl SmallFloats<'_> {
    /// # Panics
    /// If the sizes are not those of a matrix.
    pub(super) fn check(&self, outputs: usize, inner: usize) {
        assert!(
            inner.is_multiple_of(STEP),
            "invariant: rows are whole groups of whole words"
        );
        let sizes = [inner / 8 * self.format.bits(), inner / self.format.group()];
        assert_eq!(
            [self.codes.len(), self.scales.len()],
            sizes.map(|size| outputs * size),
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
        let groups = inner / self.format.group();
        let stored = &self.scales[range.start * groups..range.end * groups];
        with_scratch(packed_len(stored.len()), |scratch| {
            let scales = &mut scratch[..stored.len()];
            match self.format {
                SmallFloat::Mxfp4 => {
                    powers_of_two(stored, scales);
                    isa.run(Apply::<E2m1, 1>::new(codes, scales, out));
                }
                SmallFloat::Mxfp8 => {
                    powers_of_two(stored, scales);
                    isa.run(Apply::<E4m3, 1>::new(codes, scales, out));
                }
                SmallFloat::Nvfp4 => {
                    isa.run(Scales { stored, scales });
                    isa.run(Apply::<E2m1, 2>::new(codes, scales, out));
                }
            }
        });
    }
}

/// Widens scales that are powers of two.
fn powers_of_two(stored: &[u8], scales: &mut [f32]) {
    for (scale, byte) in scales.iter_mut().zip(stored) {
        *scale = e8m0(*byte);
    }
}

/// Widens E4M3 scales.
struct Scales<'o> {
    stored: &'o [u8],
    scales: &'o mut [f32],
}

impl Kernel for Scales<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (stored, scales) in self.stored.chunks(STEP).zip(self.scales.chunks_mut(STEP)) {
            let mut bytes = [0; STEP];
            bytes[..stored.len()].copy_from_slice(stored);
            let (first, second) = s.load_e4m3(&bytes);
            let mut wide = [0.0; STEP];
            store(s, &mut wide, first, second);
            scales.copy_from_slice(&wide[..scales.len()]);
        }
    }
}

/// A format of codes.
trait Float {
    /// Bytes of 32 codes.
    const BYTES: usize;

    /// 32 codes as numbers times the scales of the first and the last sixteen.
    fn load<S: Simd>(s: S, from: &[u8], low: f32, high: f32) -> (S::V, S::V);
}

/// Four bits.
struct E2m1;
/// Eight bits.
struct E4m3;

impl Float for E2m1 {
    const BYTES: usize = STEP / 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[u8], low: f32, high: f32) -> (S::V, S::V) {
        let mut codes = [0; STEP / 2];
        codes.copy_from_slice(from);
        let (even, odd) = s.load_e2m1(&codes);
        // Interleaved: half of each vector belongs to the first sixteen.
        let scale = s.splat_halves(low, high);
        (s.mul(even, scale), s.mul(odd, scale))
    }
}

impl Float for E4m3 {
    const BYTES: usize = STEP;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[u8], low: f32, high: f32) -> (S::V, S::V) {
        let mut codes = [0; STEP];
        codes.copy_from_slice(from);
        let (first, second) = s.load_e4m3(&codes);
        (s.mul(first, s.splat(low)), s.mul(second, s.splat(high)))
    }
}

/// The kernel that widens steps of 32 numbers, which have `SCALES` scales: one or two.
struct Apply<'o, F, const SCALES: usize> {
    codes: &'o [u8],
    scales: &'o [f32],
    out: &'o mut [f32],
    format: PhantomData<F>,
}

impl<'o, F: Float, const SCALES: usize> Apply<'o, F, SCALES> {
    fn new(codes: &'o [u8], scales: &'o [f32], out: &'o mut [f32]) -> Self {
        Self {
            codes,
            scales,
            out,
            format: PhantomData,
        }
    }
}

impl<F: Float, const SCALES: usize> Kernel for Apply<'_, F, SCALES> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (steps, _) = self.out.as_chunks_mut::<STEP>();
        let (scales, _) = self.scales.as_chunks::<SCALES>();
        let codes = self.codes.chunks_exact(F::BYTES);
        for ((out, codes), scales) in steps.iter_mut().zip(codes).zip(scales) {
            let (first, second) = F::load(s, codes, scales[0], scales[SCALES - 1]);
            store(s, out, first, second);
        }
    }
}
