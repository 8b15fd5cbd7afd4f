//! NEON: four registers per vector. Every 64-bit Arm machine has it.

use std::arch::aarch64::*;

use super::{LANES, Simd};

/// Proof that the machine has NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// # Safety
    /// The machine must have NEON.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

type V = [float32x4_t; 4];

/// Methods that are one expression of intrinsics on values and array references.
macro_rules! ops {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty $body:block)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: `self` proves that the instructions exist; every pointer comes from a
            // reference to an array of at least the accessed size, and the accesses are unaligned.
            unsafe { $body }
        }
    )*};
}

macro_rules! each {
    ($f:ident, $a:ident, $b:ident) => {
        [
            $f($a[0], $b[0]),
            $f($a[1], $b[1]),
            $f($a[2], $b[2]),
            $f($a[3], $b[3]),
        ]
    };
}

impl Simd for Neon {
    type V = V;

    const TILE_ROWS: usize = 2;
    const TILE_COLS: usize = 2;
    const NARROW_COLS: usize = 4;

    ops! {
        fn splat(x: f32) -> V { [vdupq_n_f32(x); 4] }
        fn load(from: &[f32; LANES]) -> V {
            let p = from.as_ptr();
            [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))]
        }
        fn store(to: &mut [f32; LANES], v: V) -> () {
            let p = to.as_mut_ptr();
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
            vst1q_f32(p.add(8), v[2]);
            vst1q_f32(p.add(12), v[3]);
        }
        fn load_f32_bytes(from: &[u8; 64]) -> V {
            let p = from.as_ptr();
            [
                vreinterpretq_f32_u8(vld1q_u8(p)),
                vreinterpretq_f32_u8(vld1q_u8(p.add(16))),
                vreinterpretq_f32_u8(vld1q_u8(p.add(32))),
                vreinterpretq_f32_u8(vld1q_u8(p.add(48))),
            ]
        }
        fn load_bf16_pair(from: &[u8; 64]) -> (V, V) {
            let p = from.as_ptr();
            let mask = vdupq_n_u32(0xffff_0000);
            let two = [
                vreinterpretq_u32_u8(vld1q_u8(p)),
                vreinterpretq_u32_u8(vld1q_u8(p.add(16))),
                vreinterpretq_u32_u8(vld1q_u8(p.add(32))),
                vreinterpretq_u32_u8(vld1q_u8(p.add(48))),
            ];
            let even = [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(two[0])),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(two[1])),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(two[2])),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(two[3])),
            ];
            let odd = [
                vreinterpretq_f32_u32(vandq_u32(two[0], mask)),
                vreinterpretq_f32_u32(vandq_u32(two[1], mask)),
                vreinterpretq_f32_u32(vandq_u32(two[2], mask)),
                vreinterpretq_f32_u32(vandq_u32(two[3], mask)),
            ];
            (even, odd)
        }
        fn load_f16(from: &[u8; 32]) -> V {
            let p = from.as_ptr();
            let (a, b) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            [
                widen_f16(vreinterpret_u16_u8(vget_low_u8(a))),
                widen_f16(vreinterpret_u16_u8(vget_high_u8(a))),
                widen_f16(vreinterpret_u16_u8(vget_low_u8(b))),
                widen_f16(vreinterpret_u16_u8(vget_high_u8(b))),
            ]
        }
        fn load_bytes(from: &[u8; 32]) -> (V, V) {
            (widen_u8(vld1q_u8(from.as_ptr())), widen_u8(vld1q_u8(from.as_ptr().add(16))))
        }
        fn load_nibbles(from: &[u8; 16]) -> (V, V) {
            let two = vld1q_u8(from.as_ptr());
            (widen_u8(vandq_u8(two, vdupq_n_u8(15))), widen_u8(vshrq_n_u8::<4>(two)))
        }
        fn add(a: V, b: V) -> V { each!(vaddq_f32, a, b) }
        fn sub(a: V, b: V) -> V { each!(vsubq_f32, a, b) }
        fn mul(a: V, b: V) -> V { each!(vmulq_f32, a, b) }
        fn div(a: V, b: V) -> V { each!(vdivq_f32, a, b) }
        fn fma(a: V, b: V, c: V) -> V {
            [
                vfmaq_f32(c[0], a[0], b[0]),
                vfmaq_f32(c[1], a[1], b[1]),
                vfmaq_f32(c[2], a[2], b[2]),
                vfmaq_f32(c[3], a[3], b[3]),
            ]
        }
        fn max(a: V, b: V) -> V { each!(pick_greater, a, b) }
        fn min(a: V, b: V) -> V { each!(pick_smaller, a, b) }
        fn round(v: V) -> V { [vrndnq_f32(v[0]), vrndnq_f32(v[1]), vrndnq_f32(v[2]), vrndnq_f32(v[3])] }
        fn scale(v: V, n: V) -> V { each!(scale4, v, n) }
        fn sum(v: V) -> f32 { sum_four(vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]))) }
    }

    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        [
            self.sum(v[0]),
            self.sum(v[1]),
            self.sum(v[2]),
            self.sum(v[3]),
        ]
    }
}

/// The larger one; `b` where either is not a number.
///
/// # Safety
/// NEON must be available.
#[inline(always)]
unsafe fn pick_greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller vouches for NEON.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// The smaller one; `b` where either is not a number.
///
/// # Safety
/// NEON must be available.
#[inline(always)]
unsafe fn pick_smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller vouches for NEON.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// (0 + 2) + (1 + 3) of four lanes.
///
/// # Safety
/// NEON must be available.
#[inline(always)]
unsafe fn sum_four(v: float32x4_t) -> f32 {
    // SAFETY: the caller vouches for NEON.
    unsafe {
        let two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
        vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
    }
}

/// Four lanes of [`Simd::scale`].
///
/// # Safety
/// NEON must be available.
#[inline(always)]
unsafe fn scale4(v: float32x4_t, n: float32x4_t) -> float32x4_t {
    // SAFETY: the caller vouches for NEON.
    unsafe {
        let n = vcvtq_s32_f32(n);
        let half = vshrq_n_s32::<1>(n);
        let rest = vsubq_s32(n, half);
        let bias = vdupq_n_s32(127);
        let a = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(half, bias)));
        let b = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(rest, bias)));
        vmulq_f32(vmulq_f32(v, a), b)
    }
}

/// Sixteen bytes as numbers.
///
/// # Safety
/// NEON must be available.
#[inline(always)]
unsafe fn widen_u8(bytes: uint8x16_t) -> V {
    // SAFETY: the caller vouches for NEON.
    unsafe {
        let (a, b) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
        [
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(a))),
            vcvtq_f32_u32(vmovl_u16(vget_high_u16(a))),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(b))),
            vcvtq_f32_u32(vmovl_u16(vget_high_u16(b))),
        ]
    }
}

/// Four f16 bit patterns as f32, exactly.
///
/// The conversion instruction needs the unstable f16 type, so: shift exponent and mantissa into
/// place, multiply by 2¹¹² to correct the bias (which also makes subnormals normal), and repair
/// infinities and NaN, whose exponent has to become all ones.
///
/// # Safety
/// NEON must be available.
#[inline(always)]
unsafe fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    // SAFETY: the caller vouches for NEON.
    unsafe {
        let wide = vmovl_u16(bits);
        let sign = vshlq_n_u32::<16>(vandq_u32(wide, vdupq_n_u32(0x8000)));
        let magnitude = vshlq_n_u32::<13>(vandq_u32(wide, vdupq_n_u32(0x7fff)));
        let factor = vdupq_n_f32(f32::from_bits((127 + 112) << 23));
        let finite = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(magnitude), factor));
        let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
        let infinite = vorrq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
        vreinterpretq_f32_u32(vorrq_u32(sign, vbslq_u32(special, infinite, finite)))
    }
}
