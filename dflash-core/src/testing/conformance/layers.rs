//! Products, norms and rotary positions.

use super::Failure;
use super::judge::{Judge, same};
use super::make::{Layout, Stored};
use crate::DType;
use crate::backend::{Backend, RopeSpec};

/// Products of one to seventeen rows with plain and packed weights.
pub fn linear<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for stored in Stored::PLAIN {
        for (outputs, inputs) in [(1, 1), (7, 33), (64, 96), (130, 65)] {
            for rows in [1, 2, 16, 17] {
                same!(
                    j,
                    "linear",
                    format!("{stored} [{outputs}, {inputs}], {rows} rows"),
                    |b, make| {
                        let weight = make.weight(stored, outputs, inputs)?;
                        let (x, bias) = (make.plain(&[1, rows, inputs])?, make.plain(&[outputs])?);
                        Ok(vec![
                            b.linear(&weight, &x, None)?,
                            b.linear(&weight, &x, Some(&bias))?,
                        ])
                    }
                );
            }
        }
        for layout in Layout::ALL {
            same!(
                j,
                "linear",
                format!("{stored}, {layout:?} input"),
                |b, make| {
                    let weight = make.weight(stored, 20, 40)?;
                    Ok(vec![b.linear(
                        &weight,
                        &make.tensor(&[1, 5, 40], layout)?,
                        None,
                    )?])
                }
            );
        }
        same!(
            j,
            "linear",
            format!("{stored}, a row that is not a number"),
            |b, make| {
                let weight = make.weight(stored, 20, 40)?;
                let mut numbers = make.numbers(5 * 40);
                numbers[2 * 40 + 7] = f32::NAN;
                Ok(vec![b.linear(
                    &weight,
                    &make.given(&numbers, &[1, 5, 40])?,
                    None,
                )?])
            }
        );
    }
    let affine = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group| Stored::Affine { bits, group }));
    for stored in affine.chain(Stored::SMALL_FLOATS) {
        for rows in [1, 16] {
            same!(j, "linear", format!("{stored}, {rows} rows"), |b, make| {
                let weight = make.weight(stored, 24, 256)?;
                Ok(vec![b.linear(
                    &weight,
                    &make.plain(&[1, rows, 256])?,
                    None,
                )?])
            });
        }
    }
    j.failures
}

/// Rows of plain and packed matrices.
pub fn embedding<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let packed = [4, 8].map(|bits| Stored::Affine { bits, group: 64 });
    for stored in Stored::PLAIN
        .into_iter()
        .chain(packed)
        .chain(Stored::SMALL_FLOATS)
    {
        for ids in [&[0][..], &[9, 0, 9, 3]] {
            same!(
                j,
                "embedding",
                format!("{stored}, ids {ids:?}"),
                |b, make| {
                    let weight = make.weight(stored, 10, 128)?;
                    let ids = b.upload_ids(ids)?;
                    Ok(vec![
                        b.embedding(&weight, &ids, backend.dtype())?,
                        b.embedding(&weight, &ids, DType::F32)?,
                    ])
                }
            );
        }
    }
    let blocks = |draft: Option<&[u32]>| {
        let draft = draft.map(|d| backend.upload_ids(d)).transpose()?;
        backend.read_ids(&backend.block_ids(7, draft.as_ref())?)
    };
    let (alone, block) = (blocks(None), blocks(Some(&[3, 0, 3])));
    j.equal("block_ids", "no draft", alone, &vec![7]);
    j.equal("block_ids", "three drafts", block, &vec![7, 3, 0, 3]);
    j.failures
}

/// Norms over the last axis.
pub fn rms_norm<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let shapes: [&[usize]; 5] = [
        &[1, 1, 1],
        &[1, 3, 5],
        &[1, 16, 128],
        &[1, 2, 3, 100],
        &[2, 1, 2, 3, 8],
    ];
    for shape in shapes {
        for layout in Layout::ALL {
            same!(
                j,
                "rms_norm",
                format!("{shape:?}, {layout:?} input"),
                |b, make| {
                    let (x, weight) = (
                        make.tensor(shape, layout)?,
                        make.plain(&shape[shape.len() - 1..])?,
                    );
                    Ok(vec![
                        b.rms_norm(&x, Some(&weight), 1e-6)?,
                        b.rms_norm(&x, None, 1e-2)?,
                    ])
                }
            );
        }
    }
    same!(
        j,
        "rms_norm",
        "zeros and a row that is not a number",
        |b, make| {
            let mut numbers = make.numbers(3 * 8);
            numbers[..8].fill(0.0);
            numbers[9] = f32::NAN;
            Ok(vec![b.rms_norm(
                &make.given(&numbers, &[1, 3, 8])?,
                None,
                1e-6,
            )?])
        }
    );
    j.failures
}

/// Norm per head and rotation, at small and large positions.
pub fn norm_rope<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for (head_dim, dims, amplitude) in [(8, 8, 1.0), (64, 16, 1.0), (10, 6, 1.25), (8, 0, 1.0)] {
        // The last pair never turns.
        let mut periods: Vec<f64> = (0..dims / 2)
            .map(|i| 10_000f64.powf(2.0 * f64::from(i) / f64::from(dims)))
            .collect();
        periods
            .pop()
            .into_iter()
            .for_each(|_| periods.push(f64::INFINITY));
        let dims = 2 * periods.len();
        let spec = RopeSpec {
            dims,
            periods,
            amplitude,
        };
        for (heads, rows, first) in [(1, 1, 0), (3, 1, 1), (2, 16, 5), (3, 7, 100_000)] {
            for layout in Layout::ALL {
                let case = format!(
                    "{heads} heads, {rows} rows from position {first}, {dims} of {head_dim} features, {layout:?} input"
                );
                same!(j, "norm_rope", case, |b, make| {
                    let angles = b.rope_angles(&spec, first, rows)?;
                    let (x, weight) = (
                        make.tensor(&[1, heads, rows, head_dim], layout)?,
                        make.plain(&[head_dim])?,
                    );
                    Ok(vec![
                        b.norm_rope(&x, None, &angles)?,
                        b.norm_rope(&x, Some((&weight, 1e-6)), &angles)?,
                    ])
                });
            }
            same!(
                j,
                "norm_rope",
                format!(
                    "{heads} heads, {rows} rows from position {first}, {dims} of {head_dim} features, heads split off"
                ),
                |b, make| {
                    let angles = b.rope_angles(&spec, first, rows)?;
                    let x = b.reshape(
                        &make.plain(&[1, rows, heads * head_dim])?,
                        &[1, rows, heads, head_dim],
                    )?;
                    Ok(vec![b.norm_rope(&b.swap_axes(&x, 1, 2)?, None, &angles)?])
                }
            );
        }
    }
    j.failures
}
