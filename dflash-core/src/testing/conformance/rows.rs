//! Whether a row depends on the rows beside it.

use super::Failure;
use super::fused::{Delta, Heads};
use super::judge::{Judge, attempt};
use super::make::{Layout, Stored};
use crate::backend::{Backend, Block, BlockRule, KvShape, MoeParams, RopeSpec, Visibility};
use crate::{DType, Result};

/// Rows of the largest call.
const ROWS: usize = 16;

/// How far the rows of one operation are from the same rows in other company.
#[derive(Debug, Clone, PartialEq)]
pub struct RowCase {
    /// The operation.
    pub op: &'static str,
    /// Shapes and formats of the case.
    pub case: String,
    /// The first rows whose bits differ, or the backend's error; `None` if all are bit-equal.
    pub difference: Option<String>,
    /// The largest difference as a fraction of the largest magnitude; infinite after an error.
    pub relative: f32,
}

/// Compares, bit by bit, rows computed together with the same rows alone and in chunks.
///
/// A backend at the exact level must pass; at the tie-tolerant level [`measure_rows`] tells how far rows are apart.
pub fn row_invariance<B: Backend>(backend: &B) -> Vec<Failure> {
    let failed = |case: RowCase| {
        let (op, name) = (case.op, case.case);
        case.difference.map(|difference| Failure {
            op,
            case: name,
            difference,
        })
    };
    measure_rows(backend)
        .into_iter()
        .filter_map(failed)
        .collect()
}

/// Every case of [`row_invariance`] with the difference that it shows.
pub fn measure_rows<B: Backend>(backend: &B) -> Vec<RowCase> {
    let mut j = Judge::new(backend);
    let mut cases = Vec::new();
    products(&mut j, &mut cases);
    norms(&mut j, &mut cases);
    attention(&mut j, &mut cases);
    recurrent(&mut j, &mut cases);
    // Inputs that could not be made are cases as well.
    cases.extend(j.failures.into_iter().map(|f| RowCase {
        op: f.op,
        case: f.case,
        difference: Some(f.difference),
        relative: f32::INFINITY,
    }));
    cases
}

/// Runs rows `0..ROWS` at once, one by one and in chunks. `run(first, rows)` returns rows on `axis`.
fn invariant<B: Backend>(
    b: &B,
    cases: &mut Vec<RowCase>,
    op: &'static str,
    case: String,
    axis: usize,
    run: impl Fn(usize, usize) -> Result<B::Tensor>,
) {
    let mut relative = 0f32;
    let found = attempt(|| {
        let whole = run(0, ROWS)?;
        let mut first_rows = None;
        for chunk in [1, 3, 8] {
            for first in (0..ROWS).step_by(chunk) {
                let rows = chunk.min(ROWS - first);
                let (together, alone) = (
                    b.read(&b.slice(&whole, axis, first, rows)?)?,
                    b.read(&run(first, rows)?)?,
                );
                let bits =
                    |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                if bits(&together) != bits(&alone) {
                    relative = relative.max(apart(&together, &alone));
                    first_rows.get_or_insert_with(|| {
                        let end = first + rows;
                        format!("rows {first} to {end} differ from the same rows among {ROWS}")
                    });
                }
            }
        }
        Ok(first_rows)
    });
    let difference = found.unwrap_or_else(|e| {
        relative = f32::INFINITY;
        Some(format!("error: {e}"))
    });
    cases.push(RowCase {
        op,
        case,
        difference,
        relative,
    });
}

/// The largest difference as a fraction of the largest magnitude.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = a.iter().fold(0f32, |m, x| m.max(x.abs()));
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0f32, |m, d| if d.is_nan() { f32::MAX } else { m.max(d) });
    if worst == 0.0 { 0.0 } else { worst / largest }
}

/// Builds a case's inputs, or notes why they cannot be built.
macro_rules! inputs {
    ($j:expr, $op:expr, $case:expr, $make:ident => $body:expr) => {{
        #[allow(unused_mut, reason = "an expression may only borrow the maker")]
        let mut $make = $j.maker();
        match attempt(|| Ok($body)) {
            Ok(inputs) => inputs,
            Err(e) => {
                $j.fail($op, $case, format!("error: {e}"));
                return;
            }
        }
    }};
}

fn products<B: Backend>(j: &mut Judge<'_, B>, cases: &mut Vec<RowCase>) {
    let b = j.backend;
    let affine = [
        Stored::Affine { bits: 4, group: 64 },
        Stored::Affine { bits: 8, group: 32 },
    ];
    for stored in Stored::PLAIN
        .into_iter()
        .chain(affine)
        .chain(Stored::SMALL_FLOATS)
    {
        for (outputs, inputs) in [(40, 64), (33, 320), (256, 128)] {
            let case = format!("rows: {stored} [{outputs}, {inputs}]");
            let (gate, up, x) = inputs!(j, "linear", &case, make => {
                (make.weight(stored, outputs, inputs)?, make.weight(stored, outputs, inputs)?, make.plain(&[1, ROWS, inputs])?)
            });
            invariant(b, cases, "linear", case.clone(), 1, |first, rows| {
                b.linear(&gate, &b.slice(&x, 1, first, rows)?, None)
            });
            invariant(b, cases, "swiglu", case, 1, |first, rows| {
                b.swiglu(&gate, &up, &b.slice(&x, 1, first, rows)?)
            });
        }
        let case = format!("rows: {stored}, 2 of 6");
        let (experts, x, logits) = inputs!(j, "moe", &case, make => {
            (make.experts(stored, 6, 64, 64)?, make.plain(&[1, ROWS, 64])?, make.plain(&[1, ROWS, 6])?)
        });
        invariant(b, cases, "moe", case, 1, |first, rows| {
            let part = |t| b.slice(t, 1, first, rows);
            b.moe(
                &part(&x)?,
                &part(&logits)?,
                &experts,
                &MoeParams {
                    top_k: 2,
                    normalize: true,
                },
            )
        });
    }
}

fn norms<B: Backend>(j: &mut Judge<'_, B>, cases: &mut Vec<RowCase>) {
    let b = j.backend;
    let (x, heads, weight) = inputs!(j, "rms_norm", "rows", make => {
        (make.plain(&[1, ROWS, 96])?, make.plain(&[1, 3, ROWS, 32])?, make.plain(&[32])?)
    });
    invariant(
        b,
        cases,
        "rms_norm",
        "rows: 96 features".into(),
        1,
        |first, rows| b.rms_norm(&b.slice(&x, 1, first, rows)?, None, 1e-6),
    );
    let spec = RopeSpec {
        dims: 16,
        periods: (0..8).map(|i| 10f64.powi(i)).collect(),
        amplitude: 1.0,
    };
    invariant(
        b,
        cases,
        "norm_rope",
        "rows: 3 heads".into(),
        2,
        |first, rows| {
            let angles = b.rope_angles(&spec, 1000 + first, rows)?;
            b.norm_rope(
                &b.slice(&heads, 2, first, rows)?,
                Some((&weight, 1e-6)),
                &angles,
            )
        },
    );
}

fn attention<B: Backend>(j: &mut Judge<'_, B>, cases: &mut Vec<RowCase>) {
    let b = j.backend;
    for (ratio, head_dim, before, window) in [
        (1, 32, 0, None),
        (3, 64, 5, None),
        (4, 16, 120, None),
        (2, 32, 120, Some(7)),
        (2, 32, 120, Some(64)),
    ] {
        let case = format!(
            "rows: {ratio} heads on 1, {head_dim} features, {before} keys before, window {window:?}"
        );
        let keys = before + ROWS;
        let (q, k, v) = inputs!(j, "attention", &case, make => {
            (make.plain(&[1, ratio, ROWS, head_dim])?, make.plain(&[1, 1, keys, head_dim])?, make.plain(&[1, 1, keys, head_dim])?)
        });
        // As decoding has it: the cache ends with the newest query's own row.
        invariant(b, cases, "attention", case.clone(), 2, |first, rows| {
            let mut kv = b.kv_new(KvShape { heads: 1, head_dim })?;
            let seen = before + first + rows;
            b.kv_append(
                &mut kv,
                &b.slice(&k, 2, 0, seen)?,
                &b.slice(&v, 2, 0, seen)?,
            )?;
            let visible = Visibility {
                first_key: 0,
                first_query: before + first,
                window,
            };
            b.attention(&b.slice(&q, 2, first, rows)?, &kv, None, 0.2, &visible)
        });
        // A bidirectional block is one call by nature; a causal one is not.
        invariant(
            b,
            cases,
            "attention",
            format!("{case}, causal block"),
            2,
            |first, rows| {
                let mut kv = b.kv_new(KvShape { heads: 1, head_dim })?;
                if before > 0 {
                    b.kv_append(
                        &mut kv,
                        &b.slice(&k, 2, 0, before)?,
                        &b.slice(&v, 2, 0, before)?,
                    )?;
                }
                let end = first + rows;
                let block = |t| b.slice(t, 2, before, end);
                let visible = Visibility {
                    first_key: 0,
                    first_query: before,
                    window: None,
                };
                let all = b.attention(
                    &b.slice(&q, 2, 0, end)?,
                    &kv,
                    Some(Block {
                        k: &block(&k)?,
                        v: &block(&v)?,
                        rule: BlockRule::Causal,
                    }),
                    0.2,
                    &visible,
                )?;
                b.slice(&all, 2, first, rows)
            },
        );
    }
}

fn recurrent<B: Backend>(j: &mut Judge<'_, B>, cases: &mut Vec<RowCase>) {
    let b = j.backend;
    let heads = Heads {
        key_heads: 2,
        value_heads: 4,
        key_dim: 32,
        value_dim: 16,
    };
    let delta = inputs!(j, "gated_delta", "rows", make => Delta::new(&mut make, heads, ROWS, Layout::Contiguous)?);
    invariant(
        b,
        cases,
        "gated_delta",
        "rows: 2 key heads, 4 value heads".into(),
        1,
        |first, rows| {
            let state = if first == 0 {
                delta.state.clone()
            } else {
                delta.run(b, &delta.state, 0, first)?.1
            };
            Ok(delta.run(b, &state, first, rows)?.0)
        },
    );
    let (x, window, kernel) = inputs!(j, "short_conv", "rows", make => {
        (make.plain(&[1, ROWS, 40])?, make.plain(&[1, 3, 40])?, make.plain(&[4, 40])?)
    });
    invariant(
        b,
        cases,
        "short_conv",
        "rows: 4 taps".into(),
        1,
        |first, rows| {
            let all = b.concat(&[&window, &x], 1)?;
            b.short_conv(
                &b.slice(&all, 1, first, 3)?,
                &b.slice(&x, 1, first, rows)?,
                &kernel,
            )
        },
    );
    let (x, gate, weight) = inputs!(j, "gated_rms_norm", "rows", make => {
        (make.plain(&[1, ROWS, 4, 16])?, make.plain(&[1, ROWS, 4, 16])?, make.plain(&[16])?)
    });
    invariant(
        b,
        cases,
        "gated_rms_norm",
        "rows: 4 heads".into(),
        1,
        |first, rows| {
            b.gated_rms_norm(
                &b.slice(&x, 1, first, rows)?,
                &b.slice(&gate, 1, first, rows)?,
                &weight,
                1e-6,
            )
        },
    );
    let stored = Stored::Plain(DType::F32);
    let (weight, ids) = inputs!(j, "embedding", "rows", make => (make.weight(stored, 20, 24)?, (0..16u32).collect::<Vec<_>>()));
    invariant(
        b,
        cases,
        "embedding",
        "rows: 24 features".into(),
        1,
        |first, rows| {
            b.embedding(
                &weight,
                &b.upload_ids(&ids[first..first + rows])?,
                b.dtype(),
            )
        },
    );
}
