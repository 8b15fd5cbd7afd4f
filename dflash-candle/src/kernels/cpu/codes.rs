//! Numbers stored as small codes, and how they are widened.
//!
//! A product widens a few rows at a time into scratch memory that stays in the second-level cache,
//! and multiplies them as f32. What a code stands for is computed by the same rounded operations on
//! every instruction set, so a widened number has the same bits everywhere.

mod affine;
mod small_float;

use std::ops::Range;

pub use affine::Affine;
pub use small_float::SmallFloats;

use super::isa::Isa;
use super::scratch::with_scratch;
use super::simd::{LANES, Simd};
use super::tile::{STEP, packed_len};

/// The codes of a matrix: each row is one stream of bits, the lowest bit first.
#[derive(Debug, Clone, Copy)]
pub enum Codes<'a> {
    /// Steps from a bias.
    Affine(Affine<'a>),
    /// Floats of four or eight bits.
    SmallFloats(SmallFloats<'a>),
}

impl<'a> Codes<'a> {
    /// # Panics
    /// If the sizes are not those of a matrix.
    pub(crate) fn check(&self, outputs: usize, inner: usize) {
        match self {
            Self::Affine(affine) => affine.check(outputs, inner),
            Self::SmallFloats(floats) => floats.check(outputs, inner),
        }
    }

    /// The streams.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Affine(affine) => affine.codes,
            Self::SmallFloats(floats) => floats.codes,
        }
    }

    /// Bytes of a row's codes.
    pub(crate) fn row_bytes(&self, inner: usize) -> usize {
        let bits = match self {
            Self::Affine(affine) => affine.bits,
            Self::SmallFloats(floats) => floats.format.bits(),
        };
        inner / 8 * bits
    }

    /// Whether widened rows hold the even places of each step, then the odd ones: the order in which
    /// half bytes come out of their bytes.
    pub(crate) fn interleaved(&self) -> bool {
        match self {
            Self::Affine(affine) => affine.bits == 4,
            Self::SmallFloats(floats) => floats.format.bits() == 4,
        }
    }

    /// Calls `work` with rows `range` of a matrix as f32, one after another, maybe interleaved.
    pub(crate) fn with_rows<R>(
        self,
        isa: Isa,
        inner: usize,
        range: Range<usize>,
        work: impl FnOnce(&[f32]) -> R,
    ) -> R {
        let size = self.row_bytes(inner);
        let codes = &self.bytes()[range.start * size..range.end * size];
        // Whole steps: `check` saw that rows have no incomplete one.
        with_scratch(range.len() * packed_len(inner), |out| {
            let out = &mut out[..range.len() * inner];
            match self {
                Self::Affine(affine) => affine.widen(isa, codes, inner, range, out),
                Self::SmallFloats(floats) => floats.widen(isa, codes, inner, range, out),
            }
            work(out)
        })
    }
}

/// Writes a step of numbers.
#[inline(always)]
fn store<S: Simd>(s: S, to: &mut [f32; STEP], first: S::V, second: S::V) {
    let (halves, _) = to.as_chunks_mut::<LANES>();
    if let [low, high] = halves {
        s.store(low, first);
        s.store(high, second);
    }
}

#[cfg(test)]
mod tests;
