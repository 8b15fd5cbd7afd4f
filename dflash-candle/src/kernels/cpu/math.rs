//! Elementwise functions: the exponential and what is built from it.
//!
//! One vector function serves whole vectors and, padded, the elements that are left over, so an
//! element's result does not depend on its place. Values that are not finite follow IEEE rules:
//! exp(−∞) = 0, exp(∞) = ∞, NaN stays NaN.

use std::marker::PhantomData;

use super::isa::{Isa, Kernel};
use super::simd::{LANES, Simd};
use super::{Cpu, Shared};

/// eˣ within 1.5 units in the last place (2 on the portable path), subnormal results included.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2, a polynomial of degree 7 for eʳ (Cephes' `expf`), scaled by 2ⁿ.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // Beyond these eˣ rounds to 0 and to infinity. NaN, as second operand, passes through.
    let x = s.max(s.splat(-105.0), s.min(s.splat(89.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-355.0 / 512.0), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    s.scale(p, n)
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// x / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// The tanh approximation of GELU: x · sigmoid(2·√(2/π)·(x + 0.044715·x³)).
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let x2 = s.mul(x, x);
    let inner = s.mul(x, s.fma(s.splat(0.044_715), x2, s.splat(1.0)));
    s.mul(x, sigmoid(s, s.mul(s.splat(1.595_769), inner)))
}

/// The hyperbolic tangent, within a few units in the last place.
///
/// (e²ˣ − 1) / (e²ˣ + 1), except near zero, where the difference would cancel: there an odd
/// polynomial (Cephes' `tanhf`).
#[inline(always)]
pub(crate) fn tanh_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.mul(s.splat(2.0), x));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    let x2 = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.fma(p, x2, s.splat(c));
    }
    let near = s.fma(s.mul(p, x2), x, x);
    let (mut f, mut n, mut at) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    s.store(&mut f, far);
    s.store(&mut n, near);
    s.store(&mut at, x);
    for i in 0..LANES {
        f[i] = if at[i].abs() < 0.625 { n[i] } else { f[i] };
    }
    s.load(&f)
}

/// The activation of a gated feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x · sigmoid(x): SwiGLU.
    Silu,
    /// GELU in its tanh approximation: GeGLU.
    GeluTanh,
}

/// `act(gate) · up`, elementwise, written to `gate`.
#[inline(always)]
fn glu_lanes<S: Simd>(s: S, act: Activation, gate: S::V, up: S::V) -> S::V {
    let gate = match act {
        Activation::Silu => silu(s, gate),
        Activation::GeluTanh => gelu_tanh(s, gate),
    };
    s.mul(gate, up)
}

/// A function of one number.
trait Unary {
    fn apply<S: Simd>(s: S, x: S::V) -> S::V;
}

/// A function of two numbers.
trait Binary {
    fn apply<S: Simd>(s: S, a: S::V, b: S::V) -> S::V;
}

macro_rules! functions {
    ($($trait:ident $name:ident($($arg:ident),*) = |$s:ident| $body:expr;)*) => {$(
        struct $name;
        impl $trait for $name {
            #[inline(always)]
            fn apply<S: Simd>($s: S, $($arg: S::V),*) -> S::V { $body }
        }
    )*};
}

functions! {
    Unary Exp(x) = |s| exp(s, x);
    Unary Sigmoid(x) = |s| sigmoid(s, x);
    Unary Silu(x) = |s| silu(s, x);
    Unary Gelu(x) = |s| gelu_tanh(s, x);
    Unary Tanh(x) = |s| tanh_lanes(s, x);
    Binary SwiGlu(a, b) = |s| glu_lanes(s, Activation::Silu, a, b);
    Binary GeGlu(a, b) = |s| glu_lanes(s, Activation::GeluTanh, a, b);
    Binary TimesSigmoid(a, b) = |s| s.mul(a, sigmoid(s, b));
}

/// `x + y`, elementwise.
///
/// # Panics
/// If the lengths differ.
pub fn add(cpu: &Cpu, x: &[f32], y: &[f32]) -> Vec<f32> {
    assert_eq!(x.len(), y.len(), "invariant: a number for each");
    cpu.isa.run(Sums(x, y))
}

/// `x · y`, elementwise.
///
/// # Panics
/// If the lengths differ.
pub fn mul(cpu: &Cpu, x: &[f32], y: &[f32]) -> Vec<f32> {
    assert_eq!(x.len(), y.len(), "invariant: a number for each");
    cpu.isa.run(Products(x, y))
}

struct Sums<'a>(&'a [f32], &'a [f32]);

impl Kernel for Sums<'_> {
    type Out = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> Vec<f32> {
        self.0.iter().zip(self.1).map(|(x, y)| x + y).collect()
    }
}

struct Products<'a>(&'a [f32], &'a [f32]);

impl Kernel for Products<'_> {
    type Out = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> Vec<f32> {
        self.0.iter().zip(self.1).map(|(x, y)| x * y).collect()
    }
}

struct Map<'a, F>(&'a mut [f32], PhantomData<F>);

impl<F: Unary> Kernel for Map<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (whole, rest) = self.0.as_chunks_mut::<LANES>();
        for chunk in whole {
            let v = F::apply(s, s.load(chunk));
            s.store(chunk, v);
        }
        if !rest.is_empty() {
            let mut padded = pad(rest);
            let v = F::apply(s, s.load(&padded));
            s.store(&mut padded, v);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

struct Map2<'a, F>(&'a mut [f32], &'a [f32], PhantomData<F>);

impl<F: Binary> Kernel for Map2<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (whole, rest) = self.0.as_chunks_mut::<LANES>();
        let (whole_b, rest_b) = self.1.as_chunks::<LANES>();
        for (a, b) in whole.iter_mut().zip(whole_b) {
            let v = F::apply(s, s.load(a), s.load(b));
            s.store(a, v);
        }
        if !rest.is_empty() {
            let mut padded = pad(rest);
            let v = F::apply(s, s.load(&padded), s.load(&pad(rest_b)));
            s.store(&mut padded, v);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// Up to fifteen numbers, followed by zeros.
#[inline(always)]
pub(crate) fn pad(rest: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

/// Multiply-adds that one element of these functions is worth.
const COST: usize = 16;

fn map<F: Unary>(cpu: &Cpu, x: &mut [f32]) {
    let (len, all) = (x.len(), Shared::new(x));
    cpu.split(len, LANES, len * COST, |range| {
        // SAFETY: ranges of one split are disjoint.
        cpu.isa
            .run(Map(unsafe { all.part(range) }, PhantomData::<F>));
    });
}

fn map2<F: Binary>(cpu: &Cpu, a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "invariant: both operands have one length");
    let (len, all) = (a.len(), Shared::new(a));
    cpu.split(len, LANES, len * COST, |range| {
        // SAFETY: ranges of one split are disjoint.
        cpu.isa.run(Map2(
            unsafe { all.part(range.clone()) },
            &b[range],
            PhantomData::<F>,
        ));
    });
}

/// `x := eˣ`.
pub fn exp_in_place(cpu: &Cpu, x: &mut [f32]) {
    map::<Exp>(cpu, x);
}

/// `x := 1 / (1 + e⁻ˣ)`.
pub fn sigmoid_in_place(cpu: &Cpu, x: &mut [f32]) {
    map::<Sigmoid>(cpu, x);
}

/// `x := x / (1 + e⁻ˣ)`.
pub fn silu_in_place(cpu: &Cpu, x: &mut [f32]) {
    map::<Silu>(cpu, x);
}

/// `x := gelu(x)`, tanh approximation.
pub fn gelu_in_place(cpu: &Cpu, x: &mut [f32]) {
    map::<Gelu>(cpu, x);
}

/// `x := tanh(x)`.
pub fn tanh_in_place(cpu: &Cpu, x: &mut [f32]) {
    map::<Tanh>(cpu, x);
}

/// `gate := act(gate) · up`, elementwise.
///
/// # Panics
/// If the lengths differ.
pub fn glu_in_place(cpu: &Cpu, act: Activation, gate: &mut [f32], up: &[f32]) {
    match act {
        Activation::Silu => map2::<SwiGlu>(cpu, gate, up),
        Activation::GeluTanh => map2::<GeGlu>(cpu, gate, up),
    }
}

/// [`glu_in_place`] on the calling thread, for use inside a task.
pub(crate) fn glu_here(isa: Isa, act: Activation, gate: &mut [f32], up: &[f32]) {
    match act {
        Activation::Silu => isa.run(Map2(gate, up, PhantomData::<SwiGlu>)),
        Activation::GeluTanh => isa.run(Map2(gate, up, PhantomData::<GeGlu>)),
    }
}

/// `x := x · sigmoid(gate)`, elementwise: the output gate of an attention layer.
///
/// # Panics
/// If the lengths differ.
pub fn sigmoid_gate_in_place(cpu: &Cpu, x: &mut [f32], gate: &[f32]) {
    map2::<TimesSigmoid>(cpu, x, gate);
}

/// ln(1 + eˣ), without overflow.
///
/// Used once per head and row, so it is scalar.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Numbers, assert_bits, contexts, single};
    use super::*;

    /// Distance in units in the last place of the expected number.
    fn ulps(found: f32, expected: f64) -> f64 {
        let e = expected.abs().max(f64::from(f32::MIN_POSITIVE));
        let unit = 2.0_f64.powi(e.log2().floor() as i32 - 23);
        (f64::from(found) - expected).abs() / unit
    }

    #[test]
    fn sums_and_products_are_elementwise() {
        for cpu in single() {
            let mut numbers = Numbers::new(5);
            for len in [0, 1, 15, 16, 100] {
                let (x, y) = (numbers.vec(len), numbers.vec(len));
                let each = |f: fn(f32, f32) -> f32| -> Vec<f32> {
                    x.iter().zip(&y).map(|(x, y)| f(*x, *y)).collect()
                };
                assert_eq!(add(&cpu, &x, &y), each(|x, y| x + y));
                assert_eq!(mul(&cpu, &x, &y), each(|x, y| x * y));
            }
        }
    }

    fn inputs() -> Vec<f32> {
        let mut numbers = Numbers::new(1);
        let mut x: Vec<f32> = (0..40_000)
            .map(|i| (i as f32 - 20_000.0) * 0.0051)
            .collect();
        x.extend(numbers.vec(5_000));
        x.extend([0.0, -0.0, 1e-30, -1e-30, 1e-42, 88.7, -87.4, -100.0, -103.5]);
        x.push(0.25);
        x
    }

    #[test]
    fn the_exponential_is_accurate() {
        for cpu in single() {
            let x = inputs();
            let mut y = x.clone();
            exp_in_place(&cpu, &mut y);
            let limit = if cpu.isa() == super::super::Isa::portable() {
                2.0
            } else {
                1.5
            };
            for (x, y) in x.iter().zip(&y) {
                let expected = f64::from(*x).exp();
                if expected > f64::from(f32::MAX) {
                    assert_eq!(*y, f32::INFINITY, "{cpu:?} exp({x})");
                } else {
                    assert!(
                        ulps(*y, expected) <= limit,
                        "{cpu:?} exp({x}) = {y}, {} units off",
                        ulps(*y, expected)
                    );
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_follow_the_rules() {
        for cpu in single() {
            let mut y = [
                f32::NEG_INFINITY,
                f32::INFINITY,
                f32::NAN,
                -200.0,
                200.0,
                0.0,
            ];
            exp_in_place(&cpu, &mut y);
            assert_eq!(
                (y[0], y[1], y[3], y[4], y[5]),
                (0.0, f32::INFINITY, 0.0, f32::INFINITY, 1.0),
                "{cpu:?}"
            );
            assert!(y[2].is_nan());
            let mut y = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1000.0];
            sigmoid_in_place(&cpu, &mut y);
            assert_eq!((y[0], y[1], y[3]), (0.0, 1.0, 0.0), "{cpu:?}");
            assert!(y[2].is_nan());
            let mut y = [f32::INFINITY, f32::NAN, -1000.0];
            silu_in_place(&cpu, &mut y);
            assert_eq!((y[0], y[2]), (f32::INFINITY, 0.0), "{cpu:?}");
            assert!(y[1].is_nan());
            let mut y = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
            tanh_in_place(&cpu, &mut y);
            assert_eq!((y[0], y[1]), (-1.0, 1.0), "{cpu:?}");
            assert!(y[2].is_nan());
        }
        assert!(softplus(f32::NAN).is_nan());
        assert_eq!(
            (softplus(f32::INFINITY), softplus(f32::NEG_INFINITY)),
            (f32::INFINITY, 0.0)
        );
    }

    #[test]
    fn activations_match_their_formulas() {
        for cpu in single() {
            let x: Vec<f32> = inputs().into_iter().filter(|x| x.abs() < 60.0).collect();
            let check = |run: fn(&Cpu, &mut [f32]), formula: fn(f64) -> f64, name: &str| {
                let mut y = x.clone();
                run(&cpu, &mut y);
                for (x, y) in x.iter().zip(&y) {
                    let e = formula(f64::from(*x));
                    assert!(
                        (f64::from(*y) - e).abs() <= 1e-6 * e.abs() + 1e-30,
                        "{cpu:?} {name}({x}) = {y}, expected {e}"
                    );
                }
            };
            check(sigmoid_in_place, |x| 1.0 / (1.0 + (-x).exp()), "sigmoid");
            check(silu_in_place, |x| x / (1.0 + (-x).exp()), "silu");
            check(tanh_in_place, f64::tanh, "tanh");
            let mut y = x.clone();
            gelu_in_place(&cpu, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let x = f64::from(*x);
                let e = 0.5
                    * x
                    * (1.0
                        + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x))
                            .tanh());
                assert!(
                    (f64::from(*y) - e).abs() <= 1e-5 * e.abs() + 1e-6,
                    "{cpu:?} gelu({x}) = {y}, expected {e}"
                );
            }
            for x in x {
                let e = (1.0 + f64::from(x).exp()).ln();
                assert!(
                    (f64::from(softplus(x)) - e).abs() <= 1e-6 * (1.0 + e),
                    "softplus({x})"
                );
            }
        }
    }

    #[test]
    fn an_element_does_not_depend_on_its_place() {
        let x = Numbers::new(5).vec(10_007);
        let up = Numbers::new(6).vec(10_007);
        for cpu in contexts() {
            let mut all = x.clone();
            glu_in_place(&cpu, Activation::Silu, &mut all, &up);
            let one: Vec<f32> = x
                .iter()
                .zip(&up)
                .map(|(x, up)| {
                    let mut y = [*x];
                    glu_in_place(&cpu, Activation::Silu, &mut y, &[*up]);
                    y[0]
                })
                .collect();
            assert_bits(&all, &one, &format!("{cpu:?}"));
            let mut gated = x.clone();
            sigmoid_gate_in_place(&cpu, &mut gated, &up);
            let e = x[3] / (1.0 + (-up[3]).exp());
            assert!((gated[3] - e).abs() < 1e-6);
        }
    }
}
