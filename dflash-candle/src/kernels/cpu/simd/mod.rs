//! Sixteen logical lanes of `f32`, whatever the width of the machine's registers.
//!
//! Every reduction of these kernels is written for sixteen lanes with one fixed tree at the end, so
//! AVX-512 (one register), AVX2 (two) and NEON (four) add the same numbers in the same order and
//! agree bit for bit. The portable path uses the same lanes without fused multiply-add and differs
//! from them in the last bits, but is as independent of the row count as they are.
//!
//! The alternative, a lane count per instruction set, would save the second register on AVX2 but
//! make results depend on the machine even where the arithmetic does not have to.

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use dflash_core::checkpoint::{e2m1, e4m3};

/// Logical lanes of every vector.
pub(crate) const LANES: usize = 16;

/// The vector operations of one instruction set.
///
/// A value of an implementing type is proof that the machine has the instructions: the types are
/// constructed by [`super::isa`] only, after detection.
pub(crate) trait Simd: Copy {
    /// Sixteen `f32`.
    type V: Copy;

    /// Most rows that one register tile of a product should hold.
    const TILE_ROWS: usize;
    /// Columns of such a tile.
    const TILE_COLS: usize;
    /// Columns of a tile of one or two rows.
    const NARROW_COLS: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// Sixteen numbers in order.
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// Writes the lanes in order.
    fn store(self, to: &mut [f32; LANES], v: Self::V);
    /// Sixteen little-endian `f32` from unaligned bytes.
    fn load_f32_bytes(self, from: &[u8; 64]) -> Self::V;
    /// Thirty-two little-endian bf16 numbers: those at even and those at odd places.
    fn load_bf16_pair(self, from: &[u8; 64]) -> (Self::V, Self::V);
    /// Sixteen little-endian f16 numbers in order.
    fn load_f16(self, from: &[u8; 32]) -> Self::V;
    /// Thirty-two bytes in order, as numbers.
    fn load_bytes(self, from: &[u8; 32]) -> (Self::V, Self::V);
    /// Thirty-two half bytes as numbers: the lower ones of all bytes, and the higher ones.
    fn load_nibbles(self, from: &[u8; 16]) -> (Self::V, Self::V);
    /// Such numbers times `scale` plus `bias`, which are the same in every lane; both operations round.
    #[inline(always)]
    fn load_affine4(self, from: &[u8; 16], scale: Self::V, bias: Self::V) -> (Self::V, Self::V) {
        let (low, high) = self.load_nibbles(from);
        let (low, high) = (self.mul(low, scale), self.mul(high, scale));
        (self.add(low, bias), self.add(high, bias))
    }
    /// Thirty-two E2M1 codes as the numbers that they stand for: the lower halves of all bytes, and the higher ones.
    #[inline(always)]
    fn load_e2m1(self, from: &[u8; 16]) -> (Self::V, Self::V) {
        let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
        for (i, two) in from.iter().enumerate() {
            (low[i], high[i]) = (e2m1(two & 15), e2m1(two >> 4));
        }
        (self.load(&low), self.load(&high))
    }
    /// Thirty-two codes of less than eight bits in order, eight in the lowest bits of each word, as numbers.
    #[inline(always)]
    fn load_octets<const BITS: usize>(self, words: [u64; 4]) -> (Self::V, Self::V) {
        let mut bytes = [0; 32];
        let (eights, _) = bytes.as_chunks_mut::<8>();
        for (eight, word) in eights.iter_mut().zip(words) {
            *eight = spread::<BITS>(word).to_le_bytes();
        }
        self.load_bytes(&bytes)
    }
    /// `low` in the first eight lanes, `high` in the others.
    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::V {
        let mut lanes = [low; LANES];
        lanes[LANES / 2..].fill(high);
        self.load(&lanes)
    }
    /// Thirty-two E4M3 codes in order, as the numbers that they stand for.
    #[inline(always)]
    fn load_e4m3(self, from: &[u8; 32]) -> (Self::V, Self::V) {
        let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            (low[i], high[i]) = (e4m3(from[i]), e4m3(from[LANES + i]));
        }
        (self.load(&low), self.load(&high))
    }
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a − b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, fused where the instruction set can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger one; `b` where either is not a number.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` where either is not a number.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Nearest integer, ties to even. Defined for |v| < 2²².
    fn round(self, v: Self::V) -> Self::V;
    /// `v · 2ⁿ` for integral `n` in [-252, 254], rounded once; anything for other `n`.
    fn scale(self, v: Self::V, n: Self::V) -> Self::V;
    /// Asks for the cache line at an address, which need not be readable.
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
    /// The sum of the lanes: i + (i+8), then i + (i+4), i + (i+2), i + (i+1).
    fn sum(self, v: Self::V) -> f32;
    /// Four such sums.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Sixteen such sums.
    #[inline(always)]
    fn sum16(self, v: [[Self::V; 4]; 4]) -> [[f32; 4]; 4] {
        v.map(|four| self.sum4(four))
    }
}

/// Adds sixteen lanes in the order that [`Simd::sum`] documents.
#[inline(always)]
pub(crate) fn sum_lanes(v: &[f32; LANES]) -> f32 {
    let mut eight = [0.0; 8];
    for i in 0..8 {
        eight[i] = v[i] + v[i + 8];
    }
    let four = [
        eight[0] + eight[4],
        eight[1] + eight[5],
        eight[2] + eight[6],
        eight[3] + eight[7],
    ];
    (four[0] + four[2]) + (four[1] + four[3])
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
