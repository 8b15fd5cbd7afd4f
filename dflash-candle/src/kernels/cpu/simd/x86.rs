//! AVX-512 (one register per vector) and AVX2 with FMA and F16C (two registers).

use std::arch::x86_64::*;

use super::{LANES, Simd};

/// Proof that the machine has AVX-512 F, BW, VL and DQ, and everything that [`Avx2`] needs.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx512 {
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL, DQ, AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

impl Avx2 {
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

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

impl Simd for Avx512 {
    type V = __m512;

    const TILE_ROWS: usize = 4;
    const TILE_COLS: usize = 4;
    const NARROW_COLS: usize = 8;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch reads nothing, so any address will do; every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn load_octets<const BITS: usize>(self, words: [u64; 4]) -> (__m512, __m512) {
        // SAFETY: `self` proves that the instructions exist.
        unsafe {
            let [a, b, c, d] = [
                octet::<BITS>(words[0]),
                octet::<BITS>(words[1]),
                octet::<BITS>(words[2]),
                octet::<BITS>(words[3]),
            ];
            (
                _mm512_cvtepi32_ps(_mm512_inserti32x8::<1>(_mm512_castsi256_si512(a), b)),
                _mm512_cvtepi32_ps(_mm512_inserti32x8::<1>(_mm512_castsi256_si512(c), d)),
            )
        }
    }

    ops! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(from: &[f32; LANES]) -> __m512 { _mm512_loadu_ps(from.as_ptr()) }
        fn store(to: &mut [f32; LANES], v: __m512) -> () { _mm512_storeu_ps(to.as_mut_ptr(), v) }
        fn load_f32_bytes(from: &[u8; 64]) -> __m512 { _mm512_castsi512_ps(_mm512_loadu_si512(from.as_ptr().cast())) }
        fn load_bf16_pair(from: &[u8; 64]) -> (__m512, __m512) {
            let two = _mm512_loadu_si512(from.as_ptr().cast());
            let even = _mm512_slli_epi32::<16>(two);
            let odd = _mm512_and_si512(two, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
        }
        fn load_f16(from: &[u8; 32]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
        fn load_bytes(from: &[u8; 32]) -> (__m512, __m512) {
            let low = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_loadu_si128(from.as_ptr().add(16).cast());
            (widen16(low), widen16(high))
        }
        fn load_nibbles(from: &[u8; 16]) -> (__m512, __m512) {
            let two = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let low = _mm512_and_si512(two, _mm512_set1_epi32(15));
            (_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(two)))
        }
        fn load_affine4(from: &[u8; 16], scale: __m512, bias: __m512) -> (__m512, __m512) {
            // The sixteen numbers that there can be, looked up by the lowest four bits.
            let table = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(COUNT.as_ptr()), scale), bias);
            let two = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            (
                _mm512_permutexvar_ps(two, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(two), table),
            )
        }
        fn load_e2m1(from: &[u8; 16]) -> (__m512, __m512) {
            let table = _mm512_loadu_ps(E2M1.as_ptr());
            let two = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            (
                _mm512_permutexvar_ps(two, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(two), table),
            )
        }
        fn splat_halves(low: f32, high: f32) -> __m512 {
            _mm512_insertf32x8::<1>(_mm512_set1_ps(low), _mm256_set1_ps(high))
        }
        fn load_e4m3(from: &[u8; 32]) -> (__m512, __m512) {
            let low = e4m3_halves(_mm_loadu_si128(from.as_ptr().cast()));
            let high = e4m3_halves(_mm_loadu_si128(from.as_ptr().add(16).cast()));
            let bias = _mm512_set1_ps(256.0);
            (_mm512_mul_ps(_mm512_cvtph_ps(low), bias), _mm512_mul_ps(_mm512_cvtph_ps(high), bias))
        }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn round(v: __m512) -> __m512 { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
        fn scale(v: __m512, n: __m512) -> __m512 {
            let n = _mm512_cvtps_epi32(n);
            let half = _mm512_srai_epi32::<1>(n);
            let rest = _mm512_sub_epi32(n, half);
            let bias = _mm512_set1_epi32(127);
            let a = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(half, bias)));
            let b = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(rest, bias)));
            _mm512_mul_ps(_mm512_mul_ps(v, a), b)
        }
        fn sum(v: __m512) -> f32 {
            let low = _mm512_castps512_ps256(v);
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            sum8(_mm256_add_ps(low, high))
        }
        fn sum4(v: [__m512; 4]) -> [f32; 4] {
            // Blocks of four lanes. i + (i+8) of two vectors at a time, then i + (i+4) of all four.
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(v[0], v[1]), _mm512_shuffle_f32x4::<0xee>(v[0], v[1]));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(v[2], v[3]), _mm512_shuffle_f32x4::<0xee>(v[2], v[3]));
            let abcd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            // i + (i+2), i + (i+1) inside each block.
            let two = _mm512_add_ps(abcd, _mm512_permute_ps::<0x4e>(abcd));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xb1>(two));
            let first = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), first);
            out
        }
        fn sum16(v: [[__m512; 4]; 4]) -> [[f32; 4]; 4] {
            // As in `sum4`, with a block of four lanes per row; one such vector per column.
            let mut columns = [_mm512_setzero_ps(); 4];
            for c in 0..4 {
                let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(v[0][c], v[1][c]), _mm512_shuffle_f32x4::<0xee>(v[0][c], v[1][c]));
                let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(v[2][c], v[3][c]), _mm512_shuffle_f32x4::<0xee>(v[2][c], v[3][c]));
                columns[c] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            }
            // i + (i+2) of two columns at a time, then i + (i+1) of all four: each block becomes a row of results.
            let [a, b, c, d] = columns;
            let ab = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(c, d), _mm512_shuffle_ps::<0xee>(c, d));
            let sums = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(ab, cd), _mm512_shuffle_ps::<0xdd>(ab, cd));
            let mut out = [[0.0; 4]; 4];
            _mm512_storeu_ps(out.as_mut_ptr().cast(), sums);
            out
        }
    }
}

impl Simd for Avx2 {
    type V = [__m256; 2];

    const TILE_ROWS: usize = 2;
    const TILE_COLS: usize = 2;
    const NARROW_COLS: usize = 4;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch reads nothing, so any address will do; every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn load_octets<const BITS: usize>(self, words: [u64; 4]) -> ([__m256; 2], [__m256; 2]) {
        // SAFETY: `self` proves that the instructions exist.
        unsafe {
            let [a, b, c, d] = [
                octet::<BITS>(words[0]),
                octet::<BITS>(words[1]),
                octet::<BITS>(words[2]),
                octet::<BITS>(words[3]),
            ];
            (
                [_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)],
                [_mm256_cvtepi32_ps(c), _mm256_cvtepi32_ps(d)],
            )
        }
    }

    ops! {
        fn splat(x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
        fn load(from: &[f32; LANES]) -> [__m256; 2] {
            [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))]
        }
        fn store(to: &mut [f32; LANES], v: [__m256; 2]) -> () {
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        }
        fn load_f32_bytes(from: &[u8; 64]) -> [__m256; 2] {
            [_mm256_loadu_ps(from.as_ptr().cast()), _mm256_loadu_ps(from.as_ptr().add(32).cast())]
        }
        fn load_bf16_pair(from: &[u8; 64]) -> ([__m256; 2], [__m256; 2]) {
            let a = _mm256_loadu_si256(from.as_ptr().cast());
            let b = _mm256_loadu_si256(from.as_ptr().add(32).cast());
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let even = [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b))];
            let odd = [_mm256_castsi256_ps(_mm256_and_si256(a, mask)), _mm256_castsi256_ps(_mm256_and_si256(b, mask))];
            (even, odd)
        }
        fn load_f16(from: &[u8; 32]) -> [__m256; 2] {
            let low = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_loadu_si128(from.as_ptr().add(16).cast());
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
        fn load_bytes(from: &[u8; 32]) -> ([__m256; 2], [__m256; 2]) {
            let low = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_loadu_si128(from.as_ptr().add(16).cast());
            (widen8(low), widen8(high))
        }
        fn load_nibbles(from: &[u8; 16]) -> ([__m256; 2], [__m256; 2]) {
            let [low, high] = nibbles(_mm_loadu_si128(from.as_ptr().cast()));
            (widen8(low), widen8(high))
        }
        fn load_e2m1(from: &[u8; 16]) -> ([__m256; 2], [__m256; 2]) {
            let [low, high] = nibbles(_mm_loadu_si128(from.as_ptr().cast()));
            let (low_end, high_end) = (_mm_unpackhi_epi64(low, low), _mm_unpackhi_epi64(high, high));
            ([e2m1_of(low), e2m1_of(low_end)], [e2m1_of(high), e2m1_of(high_end)])
        }
        fn splat_halves(low: f32, high: f32) -> [__m256; 2] { [_mm256_set1_ps(low), _mm256_set1_ps(high)] }
        fn load_e4m3(from: &[u8; 32]) -> ([__m256; 2], [__m256; 2]) {
            let low = e4m3_halves(_mm_loadu_si128(from.as_ptr().cast()));
            let high = e4m3_halves(_mm_loadu_si128(from.as_ptr().add(16).cast()));
            let bias = _mm256_set1_ps(256.0);
            (
                [
                    _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(low)), bias),
                    _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(low)), bias),
                ],
                [
                    _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(high)), bias),
                    _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(high)), bias),
                ],
            )
        }
        fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn div(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        fn round(v: [__m256; 2]) -> [__m256; 2] {
            [
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v[0]),
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v[1]),
            ]
        }
        fn scale(v: [__m256; 2], n: [__m256; 2]) -> [__m256; 2] { [scale8(v[0], n[0]), scale8(v[1], n[1])] }
        fn sum(v: [__m256; 2]) -> f32 { sum8(_mm256_add_ps(v[0], v[1])) }
        fn sum4(v: [[__m256; 2]; 4]) -> [f32; 4] {
            let [a, b, c, d] = v.map_sum();
            let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
            // Per half: lanes 0+2 and 1+3 of the first vector, then of the second.
            let two = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let one = _mm256_add_ps(_mm256_shuffle_ps::<0x88>(two, two), _mm256_shuffle_ps::<0xdd>(two, two));
            // Halves hold (a, c, …) and (b, d, …).
            let low = _mm256_castps256_ps128(one);
            let high = _mm256_extractf128_ps::<1>(one);
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm_unpacklo_ps(low, high));
            out
        }
    }
}

/// The half bytes of sixteen bytes, one per byte: the lower ones, and the higher ones.
///
/// # Safety
/// AVX must be available.
#[inline(always)]
unsafe fn nibbles(bytes: __m128i) -> [__m128i; 2] {
    // SAFETY: the caller vouches for AVX.
    unsafe {
        let mask = _mm_set1_epi8(15);
        [
            _mm_and_si128(bytes, mask),
            _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask),
        ]
    }
}

/// The eight lowest codes of a word.
///
/// # Safety
/// AVX2 must be available.
#[inline(always)]
unsafe fn octet<const BITS: usize>(word: u64) -> __m256i {
    // SAFETY: the caller vouches for AVX2.
    unsafe {
        let (bits, all) = (BITS as i64, _mm256_set1_epi64x(word as i64));
        // In the order in which the shuffle, which works on halves of registers, takes them.
        let a = _mm256_srlv_epi64(all, _mm256_setr_epi64x(0, bits, 4 * bits, 5 * bits));
        let b = _mm256_srlv_epi64(
            all,
            _mm256_setr_epi64x(2 * bits, 3 * bits, 6 * bits, 7 * bits),
        );
        let eight = _mm256_shuffle_ps::<0x88>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        _mm256_and_si256(
            _mm256_castps_si256(eight),
            _mm256_set1_epi32((1 << BITS) - 1),
        )
    }
}

/// Sixteen bytes as numbers.
///
/// # Safety
/// AVX-512 F must be available.
#[inline(always)]
unsafe fn widen16(bytes: __m128i) -> __m512 {
    // SAFETY: the caller vouches for AVX-512.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)) }
}

/// Sixteen bytes as numbers.
///
/// # Safety
/// AVX2 must be available.
#[inline(always)]
unsafe fn widen8(bytes: __m128i) -> [__m256; 2] {
    // SAFETY: the caller vouches for AVX2.
    unsafe {
        let high = _mm_unpackhi_epi64(bytes, bytes);
        [
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)),
        ]
    }
}

/// What codes of four bits count.
static COUNT: [f32; LANES] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
];

/// What E2M1 codes stand for.
static E2M1: [f32; LANES] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// The numbers of the lower eight of sixteen E2M1 codes, one per byte.
///
/// # Safety
/// AVX2 must be available.
#[inline(always)]
unsafe fn e2m1_of(codes: __m128i) -> __m256 {
    // SAFETY: the caller vouches for AVX2; the table holds more than eight numbers.
    unsafe {
        // The permutation looks at the lowest three bits only, and the fourth is the sign.
        let codes = _mm256_cvtepu8_epi32(codes);
        let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), codes);
        let sign = _mm256_slli_epi32::<31>(_mm256_srli_epi32::<3>(codes));
        _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))
    }
}

/// Sixteen E4M3 codes as the f16 numbers with the same exponent and fraction fields, which are
/// smaller by 2⁸; what is not a number stays so.
///
/// # Safety
/// AVX2 must be available.
#[inline(always)]
unsafe fn e4m3_halves(codes: __m128i) -> __m256i {
    // SAFETY: the caller vouches for AVX2.
    unsafe {
        let wide = _mm256_cvtepu8_epi16(codes);
        let magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        let sign = _mm256_slli_epi16::<8>(_mm256_xor_si256(wide, magnitude));
        let none = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        _mm256_or_si256(
            none,
            _mm256_or_si256(sign, _mm256_slli_epi16::<7>(magnitude)),
        )
    }
}

/// Adds the two registers of each of four vectors.
trait MapSum {
    /// # Safety
    /// AVX must be available.
    unsafe fn map_sum(self) -> [__m256; 4];
}

impl MapSum for [[__m256; 2]; 4] {
    #[inline(always)]
    unsafe fn map_sum(self) -> [__m256; 4] {
        // SAFETY: the caller vouches for AVX.
        unsafe {
            [
                _mm256_add_ps(self[0][0], self[0][1]),
                _mm256_add_ps(self[1][0], self[1][1]),
                _mm256_add_ps(self[2][0], self[2][1]),
                _mm256_add_ps(self[3][0], self[3][1]),
            ]
        }
    }
}

/// i + (i+4), i + (i+2), i + (i+1) of eight lanes.
///
/// # Safety
/// AVX must be available.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: the caller vouches for AVX.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// Eight lanes of [`Simd::scale`].
///
/// # Safety
/// AVX2 must be available.
#[inline(always)]
unsafe fn scale8(v: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller vouches for AVX2.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let rest = _mm256_sub_epi32(n, half);
        let bias = _mm256_set1_epi32(127);
        let a = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias)));
        let b = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias)));
        _mm256_mul_ps(_mm256_mul_ps(v, a), b)
    }
}
