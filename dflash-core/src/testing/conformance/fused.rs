//! Fused layers.

use super::Failure;
use super::judge::{Judge, attempt, same, tolerance};
use super::make::{Layout, Maker, Stored};
use crate::backend::{Backend, DeltaParams, Exactness, MoeParams};
use crate::{DType, Result};

/// Gate and up products with their activation.
pub fn swiglu<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let affine = [
        Stored::Affine { bits: 4, group: 32 },
        Stored::Affine { bits: 8, group: 64 },
    ];
    for stored in Stored::PLAIN
        .into_iter()
        .chain(affine)
        .chain(Stored::SMALL_FLOATS)
    {
        for rows in [1, 16] {
            for layout in Layout::ALL {
                same!(
                    j,
                    "swiglu",
                    format!("{stored}, {rows} rows, {layout:?} input"),
                    |b, make| {
                        let (gate, up) =
                            (make.weight(stored, 50, 64)?, make.weight(stored, 50, 64)?);
                        Ok(vec![b.swiglu(
                            &gate,
                            &up,
                            &make.tensor(&[1, rows, 64], layout)?,
                        )?])
                    }
                );
            }
        }
    }
    j.failures
}

/// Norm, then gate.
pub fn gated_rms_norm<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for shape in [[1, 1, 1, 8], [1, 16, 3, 32], [1, 2, 4, 5]] {
        for layout in Layout::ALL {
            same!(
                j,
                "gated_rms_norm",
                format!("{shape:?}, {layout:?} input"),
                |b, make| {
                    let (x, gate) = (make.tensor(&shape, layout)?, make.tensor(&shape, layout)?);
                    Ok(vec![b.gated_rms_norm(
                        &x,
                        &gate,
                        &make.plain(&shape[3..])?,
                        1e-6,
                    )?])
                }
            );
        }
    }
    j.failures
}

/// Rows and windows of two to five taps, and one call against two.
pub fn short_conv<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for taps in [2, 3, 4, 5] {
        for rows in [1, 2, 3, 16] {
            for layout in Layout::ALL {
                same!(
                    j,
                    "short_conv",
                    format!("{taps} taps, {rows} rows, {layout:?} input"),
                    |b, make| {
                        let (window, x) = (
                            make.tensor(&[1, taps - 1, 24], layout)?,
                            make.tensor(&[1, rows, 24], layout)?,
                        );
                        Ok(vec![b.short_conv(
                            &window,
                            &x,
                            &make.plain(&[taps, 24])?,
                        )?])
                    }
                );
            }
        }
    }
    let mut make = j.maker();
    let continued = attempt(|| {
        let b = backend;
        let (window, x, kernel) = (
            make.plain(&[1, 3, 24])?,
            make.plain(&[1, 9, 24])?,
            make.plain(&[4, 24])?,
        );
        let whole = b.read(&b.short_conv(&window, &x, &kernel)?)?;
        let (first, rest) = (b.slice(&x, 1, 0, 5)?, b.slice(&x, 1, 5, 4)?);
        let mut parts = b.read(&b.short_conv(&window, &first, &kernel)?)?;
        parts.extend(b.read(&b.short_conv(&b.slice(&first, 1, 2, 3)?, &rest, &kernel)?)?);
        Ok(parts == whole)
    });
    j.require(
        "short_conv",
        "five rows and four more against nine",
        continued,
        "two calls must give the bits of one",
    );
    j.failures
}

/// Sizes of one gated-delta case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
}

/// The inputs of the gated delta rule.
#[derive(Debug)]
pub(super) struct Delta<B: Backend> {
    pub(super) state: B::Tensor,
    pub(super) mixed: B::Tensor,
    pub(super) decay: B::Tensor,
    pub(super) strength: B::Tensor,
    pub(super) params: DeltaParams<B::Tensor>,
}

impl<B: Backend> Delta<B> {
    pub(super) fn new(
        make: &mut Maker<'_, B>,
        heads: Heads,
        rows: usize,
        layout: Layout,
    ) -> Result<Self> {
        let Heads {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        } = heads;
        let params = DeltaParams {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps: 4,
            a_log: make.wide(&[value_heads])?,
            dt_bias: make.wide(&[value_heads])?,
        };
        Ok(Self {
            state: make.wide(&[value_heads, value_dim, key_dim])?,
            mixed: make.tensor(&[1, rows, params.channels()], layout)?,
            decay: make.tensor(&[1, rows, value_heads], layout)?,
            strength: make.tensor(&[1, rows, value_heads], layout)?,
            params,
        })
    }

    /// Runs rows from a state.
    pub(super) fn run(
        &self,
        b: &B,
        state: &B::Tensor,
        first: usize,
        rows: usize,
    ) -> Result<(B::Tensor, B::Tensor)> {
        let part = |t| b.slice(t, 1, first, rows);
        b.gated_delta(
            state,
            &part(&self.mixed)?,
            &part(&self.decay)?,
            &part(&self.strength)?,
            &self.params,
        )
    }
}

/// Head ratios, rows one by one and many, a zero row, and one call against two.
pub fn gated_delta<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    // The last has the head sizes of published hybrids.
    let sizes = [
        (1, 1, 8, 8),
        (2, 4, 32, 16),
        (1, 3, 32, 8),
        (2, 2, 64, 32),
        (2, 6, 128, 128),
    ];
    let heads = sizes.map(|(key_heads, value_heads, key_dim, value_dim)| Heads {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    });
    for heads in heads {
        for rows in [1, 2, 16] {
            for layout in Layout::ALL {
                same!(
                    j,
                    "gated_delta",
                    format!("{heads:?}, {rows} rows, {layout:?} input"),
                    |b, make| {
                        let delta = Delta::new(&mut make, heads, rows, layout)?;
                        let (y, state) = b.gated_delta(
                            &delta.state,
                            &delta.mixed,
                            &delta.decay,
                            &delta.strength,
                            &delta.params,
                        )?;
                        Ok(vec![y, state])
                    }
                );
            }
        }
    }
    same!(j, "gated_delta", "rows of zeros", |b, make| {
        let mut delta = Delta::new(&mut make, heads[0], 3, Layout::Contiguous)?;
        delta.mixed = make.given(&[0.0; 3 * 24], &[1, 3, 24])?;
        let (y, state) = delta.run(b, &delta.state, 0, 3)?;
        Ok(vec![y, state])
    });
    let mut make = j.maker();
    let continued = attempt(|| {
        let b = backend;
        let delta = Delta::new(&mut make, heads[1], 7, Layout::Contiguous)?;
        let (whole, last) = delta.run(b, &delta.state, 0, 7)?;
        let (first, middle) = delta.run(b, &delta.state, 0, 3)?;
        let (rest, end) = delta.run(b, &middle, 3, 4)?;
        let mut parts = b.read(&first)?;
        parts.extend(b.read(&rest)?);
        let same = |found: &[f32], expected: &[f32]| match b.exactness() {
            Exactness::Exact => found == expected,
            Exactness::TieTolerant => {
                let near =
                    |(f, e): (&f32, &f32)| (f - e).abs() <= tolerance(b.dtype()) * (e.abs() + 1.0);
                found.len() == expected.len() && found.iter().zip(expected).all(near)
            }
        };
        Ok(same(&parts, &b.read(&whole)?) && same(&b.read(&end)?, &b.read(&last)?))
    });
    j.require(
        "gated_delta",
        "three rows and four more against seven",
        continued,
        "two calls must give the numbers of one, at the exact level their bits",
    );
    j.failures
}

/// Taps, groups, blocks shorter than the kernel.
pub fn dynamic_conv<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for (taps, dim, groups) in [(1, 8, 2), (2, 24, 3), (2, 16, 16), (3, 24, 1)] {
        for rows in [1, 2, 3, 16] {
            for layout in Layout::ALL {
                same!(
                    j,
                    "dynamic_conv",
                    format!("{taps} taps, {groups} groups in {dim}, {rows} rows, {layout:?} input"),
                    |b, make| {
                        let (y, dynamic) = (
                            make.tensor(&[1, rows, dim], layout)?,
                            make.tensor(&[1, rows, taps, groups], layout)?,
                        );
                        Ok(vec![b.dynamic_conv(
                            &y,
                            &make.plain(&[taps, dim])?,
                            &dynamic,
                        )?])
                    }
                );
            }
        }
    }
    same!(
        j,
        "dynamic_conv",
        "one side of a kernel with two sides",
        |b, make| {
            let both = make.plain(&[1, 5, 2, 2 * 3])?;
            let dynamic = b.reshape(&b.slice(&both, 2, 1, 1)?, &[1, 5, 2, 3])?;
            Ok(vec![b.dynamic_conv(
                &make.plain(&[1, 5, 12])?,
                &make.plain(&[2, 12])?,
                &dynamic,
            )?])
        }
    );
    j.failures
}

/// Routing with and without renormalising, and router logits that are equal.
pub fn moe<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for stored in Stored::PLAIN
        .into_iter()
        .chain([Stored::Affine { bits: 4, group: 32 }])
        .chain(Stored::SMALL_FLOATS)
    {
        for top_k in [1, 2, 6] {
            for normalize in [false, true] {
                for rows in [1, 16] {
                    same!(
                        j,
                        "moe",
                        format!("{stored}, {top_k} of 6, normalize {normalize}, {rows} rows"),
                        |b, make| {
                            let experts = make.experts(stored, 6, 32, 64)?;
                            let x = make.plain(&[1, rows, 64])?;
                            // Steps of a half: far apart in every format, and often equal.
                            let logits: Vec<f32> = make
                                .numbers(rows * 6)
                                .iter()
                                .map(|l| (l * 4.0).round() / 2.0)
                                .collect();
                            Ok(vec![b.moe(
                                &x,
                                &make.given(&logits, &[1, rows, 6])?,
                                &experts,
                                &MoeParams { top_k, normalize },
                            )?])
                        }
                    );
                }
            }
        }
    }
    for layout in Layout::ALL {
        same!(j, "moe", format!("{layout:?} input"), |b, make| {
            let experts = make.experts(Stored::Plain(DType::F32), 6, 32, 64)?;
            let logits: Vec<f32> = make
                .numbers(5 * 6)
                .iter()
                .map(|l| (l * 8.0).round() / 2.0)
                .collect();
            let logits = make.laid_out(&logits, &[1, 5, 6], layout)?;
            let x = make.tensor(&[1, 5, 64], layout)?;
            Ok(vec![b.moe(
                &x,
                &logits,
                &experts,
                &MoeParams {
                    top_k: 2,
                    normalize: true,
                },
            )?])
        });
    }
    j.failures
}
