//! The gated delta rule: a recurrent state per value head that each row decays and corrects.
//!
//! Per head with state S `[value_dim, key_dim]` and for each row in turn:
//! S ← g·S; m = S·k; S ← S + β·(v − m)·kᵀ; y = S·q, where
//! g = exp(−exp(A_log) · softplus(a + dt_bias)), β = sigmoid(b), and q and k are divided by their
//! lengths √(Σx² + 10⁻⁶), q also by √key_dim.
//!
//! The rows of S do not depend on each other, so a task keeps a few of them in registers and walks
//! over all rows of the call. There is no chunked form: it would reorder the sums.

use super::isa::{Isa, Kernel};
use super::math::softplus;
use super::norm::sum_of_squares;
use super::scratch::with_scratch;
use super::simd::{LANES, Simd};
use super::{Cpu, Shared, filled};

/// Added to the sum of squares of q and k.
const LENGTH_EPS: f32 = 1e-6;
/// Rows of the state that are advanced together: enough that one row's sums hide behind the others',
/// few enough to stay in registers.
const fn rows_together(vectors: usize) -> usize {
    if vectors <= 2 { 8 } else { 4 }
}
/// The longest key that the kernel is compiled for.
pub const MAX_KEY_DIM: usize = 32 * LANES;

/// Sizes and per-head constants of a gated-delta layer.
#[derive(Debug, Clone, Copy)]
pub struct GatedDelta<'a> {
    /// Heads of q and k; value head h uses key head h / (value_heads / key_heads).
    pub key_heads: usize,
    /// Heads of v.
    pub value_heads: usize,
    /// Numbers per key head, at most [`MAX_KEY_DIM`].
    pub key_dim: usize,
    /// Numbers per value head.
    pub value_dim: usize,
    /// Logarithm of the decay rate, one per value head.
    pub a_log: &'a [f32],
    /// Added to a, one per value head.
    pub dt_bias: &'a [f32],
}

impl GatedDelta<'_> {
    /// Numbers per input row: q, k and v of all heads.
    pub fn width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Numbers of a state, `[value_heads, value_dim, key_dim]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }
}

/// One call's inputs.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaRows<'a> {
    /// q | k | v of all heads after convolution and silu, `[time, width]`.
    pub mixed: &'a [f32],
    /// Input of the decay, `[time, value_heads]`.
    pub a: &'a [f32],
    /// Input of β, `[time, value_heads]`.
    pub b: &'a [f32],
}

/// Runs all rows: outputs `[time, value_heads, value_dim]` and the state after the last row.
///
/// `state` is left as it is. Running rows in one call or in several gives the same bits.
///
/// # Panics
/// If a slice does not match its shape.
pub fn gated_delta(
    cpu: &Cpu,
    layer: GatedDelta<'_>,
    rows: GatedDeltaRows<'_>,
    state: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let GatedDelta {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = layer;
    assert!(
        key_heads > 0 && value_heads.is_multiple_of(key_heads),
        "invariant: value heads are shared evenly among key heads"
    );
    assert!(
        key_dim > 0 && key_dim <= MAX_KEY_DIM,
        "invariant: the key is not longer than the kernel's registers"
    );
    assert_eq!(
        (layer.a_log.len(), layer.dt_bias.len()),
        (value_heads, value_heads),
        "invariant: constants per value head"
    );
    let time = rows.a.len() / value_heads;
    assert_eq!(
        (rows.a.len(), rows.b.len()),
        (time * value_heads, time * value_heads),
        "invariant: gates per row and head"
    );
    assert_eq!(
        rows.mixed.len(),
        time * layer.width(),
        "invariant: whole rows"
    );
    assert_eq!(
        state.len(),
        layer.state_len(),
        "invariant: the state has the layer's shape"
    );
    // SAFETY: every item of the scan writes its rows of the state, and their outputs of every time;
    // together the items are all rows of all heads.
    let (y, (after, ())) = unsafe {
        filled(time * value_heads * value_dim, |y| {
            filled(layer.state_len(), |after| {
                scan(cpu, layer, rows, state, y, after)
            })
        })
    };
    (y, after)
}

/// [`gated_delta`] into memory that need not hold numbers yet; all of it is written.
fn scan(
    cpu: &Cpu,
    layer: GatedDelta<'_>,
    rows: GatedDeltaRows<'_>,
    state: &[f32],
    y: Shared<'_>,
    state_out: Shared<'_>,
) {
    let GatedDelta {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = layer;
    let time = rows.a.len() / value_heads;
    let vectors = key_dim.div_ceil(LANES).next_power_of_two();
    let padded = vectors * LANES;
    let (unit_size, gate_size) = (key_heads * time * 2 * padded, value_heads * time * 2);
    with_scratch(unit_size + gate_size, |scratch| {
        let (units, gates) = scratch.split_at_mut(unit_size);
        {
            // q and k per key head and row, then g and β per value head and row.
            let (units, gates) = (Shared::new(units), Shared::new(gates));
            cpu.split(
                key_heads,
                1,
                time * (layer.width() + 60 * value_heads),
                |heads| {
                    for h in heads {
                        // SAFETY: every key head belongs to one task.
                        let out = unsafe {
                            units.part(h * time * 2 * padded..(h + 1) * time * 2 * padded)
                        };
                        cpu.isa.run(Units {
                            layer,
                            mixed: rows.mixed,
                            head: h,
                            padded,
                            out,
                        });
                        let shared = value_heads / key_heads;
                        for v in h * shared..(h + 1) * shared {
                            let rate = layer.a_log[v].exp();
                            // SAFETY: every value head belongs to one key head.
                            let out = unsafe { gates.part(v * time * 2..(v + 1) * time * 2) };
                            for (t, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                                let at = t * value_heads + v;
                                out[0] = (-rate * softplus(rows.a[at] + layer.dt_bias[v])).exp();
                                out[1] = 1.0 / (1.0 + (-rows.b[at]).exp());
                            }
                        }
                    }
                },
            );
        }
        let together = rows_together(vectors);
        let blocks = value_dim.div_ceil(together);
        let (units, gates): (&[f32], &[f32]) = (units, gates);
        cpu.split(
            value_heads * blocks,
            1,
            time * layer.state_len() * 4 + layer.state_len(),
            |items| {
                for item in items {
                    let (head, row) = (item / blocks, item % blocks * together);
                    let count = together.min(value_dim - row);
                    let key_head = head / (value_heads / key_heads);
                    let from = (head * value_dim + row) * key_dim
                        ..(head * value_dim + row + count) * key_dim;
                    let scan = Scan {
                        layer,
                        mixed: rows.mixed,
                        units: &units
                            [key_head * time * 2 * padded..(key_head + 1) * time * 2 * padded],
                        gates: &gates[head * time * 2..(head + 1) * time * 2],
                        state: &state[from.clone()],
                        head,
                        row,
                        count,
                        y,
                        state_out,
                    };
                    scan.compute(cpu.isa, vectors);
                }
            },
        );
    });
}

/// Scales q and k of one key head to unit length and pads them with zeros.
struct Units<'a> {
    layer: GatedDelta<'a>,
    mixed: &'a [f32],
    head: usize,
    padded: usize,
    out: &'a mut [f32],
}

impl Kernel for Units<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let GatedDelta {
            key_heads, key_dim, ..
        } = self.layer;
        let q_factor = 1.0 / (key_dim as f32).sqrt();
        for (row, out) in self
            .mixed
            .chunks_exact(self.layer.width())
            .zip(self.out.chunks_exact_mut(2 * self.padded))
        {
            let (q_out, k_out) = out.split_at_mut(self.padded);
            let q = &row[self.head * key_dim..(self.head + 1) * key_dim];
            let k = &row[(key_heads + self.head) * key_dim..(key_heads + self.head + 1) * key_dim];
            unit(s, q, q_factor, q_out);
            unit(s, k, 1.0, k_out);
        }
    }
}

#[inline(always)]
fn unit<S: Simd>(s: S, x: &[f32], factor: f32, out: &mut [f32]) {
    let inverse = 1.0 / (sum_of_squares(s, x) + LENGTH_EPS).sqrt();
    for (o, x) in out.iter_mut().zip(x) {
        *o = x * inverse * factor;
    }
    out[x.len()..].fill(0.0);
}

/// Some rows of one head's state, over all rows of the call.
struct Scan<'a> {
    layer: GatedDelta<'a>,
    mixed: &'a [f32],
    units: &'a [f32],
    gates: &'a [f32],
    state: &'a [f32],
    head: usize,
    row: usize,
    count: usize,
    y: Shared<'a>,
    state_out: Shared<'a>,
}

impl Scan<'_> {
    fn compute(self, isa: Isa, vectors: usize) {
        match vectors {
            1 => isa.run(ScanKernel::<1, { rows_together(1) }>(self)),
            2 => isa.run(ScanKernel::<2, { rows_together(2) }>(self)),
            4 => isa.run(ScanKernel::<4, { rows_together(4) }>(self)),
            8 => isa.run(ScanKernel::<8, { rows_together(8) }>(self)),
            16 => isa.run(ScanKernel::<16, { rows_together(16) }>(self)),
            _ => isa.run(ScanKernel::<32, { rows_together(32) }>(self)),
        }
    }
}

struct ScanKernel<'a, const C: usize, const R: usize>(Scan<'a>);

impl<const C: usize, const R: usize> Kernel for ScanKernel<'_, C, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scan {
            layer,
            mixed,
            units,
            gates,
            state,
            head,
            row,
            count,
            y,
            state_out,
        } = self.0;
        let GatedDelta {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = layer;
        let mut rows = [[s.splat(0.0); C]; R];
        for (r, from) in state.chunks_exact(key_dim).enumerate() {
            let mut padded = [[0.0; LANES]; C];
            padded.as_flattened_mut()[..key_dim].copy_from_slice(from);
            for c in 0..C {
                rows[r][c] = s.load(&padded[c]);
            }
        }
        let v_start = 2 * key_heads * key_dim + head * value_dim + row;
        let (gates, _) = gates.as_chunks::<2>();
        let (units, _) = units.as_chunks::<LANES>();
        for (t, [g, beta]) in gates.iter().enumerate() {
            let (q, k) = (
                &units[2 * t * C..(2 * t + 1) * C],
                &units[(2 * t + 1) * C..(2 * t + 2) * C],
            );
            let at = t * layer.width() + v_start;
            let mut v = [0.0; R];
            v[..count].copy_from_slice(&mixed[at..at + count]);
            let g = s.splat(*g);
            let mut products = [s.splat(0.0); R];
            for c in 0..C {
                let k = s.load(&k[c]);
                for r in 0..R {
                    rows[r][c] = s.mul(g, rows[r][c]);
                    products[r] = s.fma(rows[r][c], k, products[r]);
                }
            }
            let found = sums(s, products);
            let mut delta = [s.splat(0.0); R];
            for r in 0..R {
                delta[r] = s.splat(beta * (v[r] - found[r]));
            }
            let mut products = [s.splat(0.0); R];
            for c in 0..C {
                let (k, q) = (s.load(&k[c]), s.load(&q[c]));
                for r in 0..R {
                    rows[r][c] = s.fma(delta[r], k, rows[r][c]);
                    products[r] = s.fma(rows[r][c], q, products[r]);
                }
            }
            let sums = sums(s, products);
            let at = (t * value_heads + head) * value_dim + row;
            // SAFETY: these outputs belong to this item alone.
            unsafe { y.write(at, &sums[..count]) };
        }
        for (r, vectors) in rows.iter().enumerate().take(count) {
            let mut padded = [[0.0; LANES]; C];
            for c in 0..C {
                s.store(&mut padded[c], vectors[c]);
            }
            let at = (head * value_dim + row + r) * key_dim;
            // SAFETY: every row of the state belongs to one item.
            unsafe { state_out.write(at, &padded.as_flattened()[..key_dim]) };
        }
    }
}

/// The sum of each vector; there are a multiple of four.
#[inline(always)]
fn sums<S: Simd, const R: usize>(s: S, vectors: [S::V; R]) -> [f32; R] {
    let mut sums = [0.0; R];
    for (four, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *sums = s.sum4([
            vectors[4 * four],
            vectors[4 * four + 1],
            vectors[4 * four + 2],
            vectors[4 * four + 3],
        ]);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Numbers, assert_bits, assert_close, contexts};
    use super::*;

    struct Case {
        sizes: [usize; 4],
        time: usize,
        constants: [Vec<f32>; 2],
        mixed: Vec<f32>,
        a: Vec<f32>,
        b: Vec<f32>,
        state: Vec<f32>,
    }

    impl Case {
        fn new(sizes: [usize; 4], time: usize) -> Self {
            let [hk, hv, dk, dv] = sizes;
            let mut n = Numbers::new((dk * dv) as u64);
            let width = 2 * hk * dk + hv * dv;
            Self {
                sizes,
                time,
                constants: [n.vec(hv), n.vec(hv)],
                mixed: n.vec(time * width),
                a: n.vec(time * hv),
                b: n.vec(time * hv),
                state: n.vec(hv * dv * dk),
            }
        }

        fn layer(&self) -> GatedDelta<'_> {
            let [key_heads, value_heads, key_dim, value_dim] = self.sizes;
            GatedDelta {
                key_heads,
                value_heads,
                key_dim,
                value_dim,
                a_log: &self.constants[0],
                dt_bias: &self.constants[1],
            }
        }

        /// Runs the rows in calls of the given lengths.
        fn run(&self, cpu: &Cpu, calls: &[usize]) -> (Vec<f32>, Vec<f32>) {
            let [_, hv, _, dv] = self.sizes;
            let (width, mut y, mut state, mut t) =
                (self.layer().width(), Vec::new(), self.state.clone(), 0);
            for n in calls {
                let rows = GatedDeltaRows {
                    mixed: &self.mixed[t * width..(t + n) * width],
                    a: &self.a[t * hv..(t + n) * hv],
                    b: &self.b[t * hv..(t + n) * hv],
                };
                let before = state.clone();
                let (out, after) = gated_delta(cpu, self.layer(), rows, &state);
                assert_eq!(out.len(), n * hv * dv);
                assert_bits(&state, &before, "the state before is left as it is");
                y.extend(out);
                state = after;
                t += n;
            }
            (y, state)
        }

        fn naive(&self) -> (Vec<f64>, Vec<f64>) {
            let [hk, hv, dk, dv] = self.sizes;
            let width = self.layer().width();
            let mut y = vec![0.0; self.time * hv * dv];
            let mut state: Vec<f64> = self.state.iter().map(|x| f64::from(*x)).collect();
            for t in 0..self.time {
                let row: Vec<f64> = self.mixed[t * width..(t + 1) * width]
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect();
                for h in 0..hv {
                    let key = h / (hv / hk);
                    let unit = |x: &[f64]| {
                        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                        x.iter().map(|x| x / length).collect::<Vec<f64>>()
                    };
                    let q: Vec<f64> = unit(&row[key * dk..(key + 1) * dk])
                        .iter()
                        .map(|x| x / (dk as f64).sqrt())
                        .collect();
                    let k = unit(&row[(hk + key) * dk..(hk + key + 1) * dk]);
                    let v = &row[2 * hk * dk + h * dv..][..dv];
                    let a = f64::from(self.a[t * hv + h]) + f64::from(self.constants[1][h]);
                    let g = (-f64::from(self.constants[0][h]).exp() * (1.0 + a.exp()).ln()).exp();
                    let beta = 1.0 / (1.0 + (-f64::from(self.b[t * hv + h])).exp());
                    for i in 0..dv {
                        let s = &mut state[(h * dv + i) * dk..(h * dv + i + 1) * dk];
                        s.iter_mut().for_each(|s| *s *= g);
                        let m: f64 = s.iter().zip(&k).map(|(s, k)| s * k).sum();
                        s.iter_mut()
                            .zip(&k)
                            .for_each(|(s, k)| *s += beta * (v[i] - m) * k);
                        y[(t * hv + h) * dv + i] = s.iter().zip(&q).map(|(s, q)| s * q).sum();
                    }
                }
            }
            (y, state)
        }
    }

    const SIZES: [[usize; 4]; 6] = [
        [1, 1, 1, 1],
        [2, 4, 5, 3],
        [1, 3, 33, 7],
        [2, 2, 64, 64],
        [2, 6, 128, 128],
        [1, 2, 256, 10],
    ];

    #[test]
    fn the_scan_matches_the_recurrence() {
        for cpu in contexts() {
            for sizes in SIZES {
                let case = Case::new(sizes, 6);
                let ((y, state), (y_naive, state_naive)) = (case.run(&cpu, &[6]), case.naive());
                assert_close(&y, &y_naive, 1e-5, &format!("{cpu:?} {sizes:?} outputs"));
                assert_close(
                    &state,
                    &state_naive,
                    1e-5,
                    &format!("{cpu:?} {sizes:?} state"),
                );
            }
        }
    }

    #[test]
    fn calls_can_be_cut_anywhere() {
        for cpu in contexts() {
            for sizes in SIZES {
                let case = Case::new(sizes, 9);
                let (y, state) = case.run(&cpu, &[9]);
                for calls in [vec![1; 9], vec![4, 5], vec![8, 1], vec![2, 0, 7]] {
                    let (y_cut, state_cut) = case.run(&cpu, &calls);
                    assert_bits(&y_cut, &y, &format!("{cpu:?} {sizes:?} {calls:?} outputs"));
                    assert_bits(
                        &state_cut,
                        &state,
                        &format!("{cpu:?} {sizes:?} {calls:?} state"),
                    );
                }
            }
        }
    }
}
