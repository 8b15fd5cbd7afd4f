//! Plain Rust, for machines without a known vector unit and as the yardstick of the other paths.

use super::{LANES, Simd, sum_lanes};

/// No instruction beyond the build's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// 2ⁿ for n in [-126, 127].
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

impl Simd for Portable {
    type V = [f32; LANES];

    const TILE_ROWS: usize = 1;
    const TILE_COLS: usize = 1;
    const NARROW_COLS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES], v: Self::V) {
        *to = v;
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 64]) -> Self::V {
        let mut out = [0.0; LANES];
        for (o, b) in out.iter_mut().zip(from.as_chunks::<4>().0) {
            *o = f32::from_le_bytes(*b);
        }
        out
    }
    #[inline(always)]
    fn load_bf16_pair(self, from: &[u8; 64]) -> (Self::V, Self::V) {
        let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
        for (i, b) in from.as_chunks::<4>().0.iter().enumerate() {
            let two = u32::from_le_bytes(*b);
            even[i] = f32::from_bits(two << 16);
            odd[i] = f32::from_bits(two & 0xffff_0000);
        }
        (even, odd)
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::V {
        let mut out = [0.0; LANES];
        for (o, b) in out.iter_mut().zip(from.as_chunks::<2>().0) {
            *o = half::f16::from_le_bytes(*b).to_f32();
        }
        out
    }
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 32]) -> (Self::V, Self::V) {
        let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            (low[i], high[i]) = (f32::from(from[i]), f32::from(from[LANES + i]));
        }
        (low, high)
    }
    #[inline(always)]
    fn load_nibbles(self, from: &[u8; 16]) -> (Self::V, Self::V) {
        let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
        for (i, two) in from.iter().enumerate() {
            (low[i], high[i]) = (f32::from(two & 15), f32::from(two >> 4));
        }
        (low, high)
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a / b)
    }
    // Two roundings: a fused one is a library call per lane where the build's baseline lacks it.
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        map(map(a, b, |a, b| a * b), c, |ab, c| ab + c)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        // Adding 1.5 · 2²³ pushes the fraction out of the mantissa, rounding to nearest even.
        const MAGIC: f32 = 12_582_912.0;
        map(v, v, |v, _| (v + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        map(v, n, |v, n| {
            let n = n as i32;
            let half = n >> 1;
            v * power_of_two(half) * power_of_two(n - half)
        })
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        sum_lanes(&v)
    }
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        [
            sum_lanes(&v[0]),
            sum_lanes(&v[1]),
            sum_lanes(&v[2]),
            sum_lanes(&v[3]),
        ]
    }
}
