//! Visibility and causality of a draft's layers, cell by cell.

use std::path::Path;

use serde_json::{Value, json};

use super::{Setting, apart, sliding};
use crate::Result;
use crate::backend::Backend;
use crate::config::DraftKind;
use crate::draft::DraftState;
use crate::models::Context;
use crate::spec::DraftModel;
use crate::testing::tiny::Tiny;

/// Which cells of a layer's mask are visible, told by what a change of a key changes: `is_causal` true, false and absent,
/// on full and sliding layers, at block 4 and window 6. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_mask<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    const ROWS: usize = 4;
    const WINDOW: usize = 6;
    const CONTEXT: usize = 10;
    let mut found = Vec::new();
    for (kind, causal) in [Some(true), Some(false), None]
        .into_iter()
        .flat_map(|c| [(DraftKind::DFlash1, c), (DraftKind::DFlash2, c)])
    {
        for slides in [false, true] {
            let types = if slides { ["sliding"] } else { ["full"] };
            let tweak = |c: &mut Value| {
                sliding(c, &types, WINDOW);
                c["dflash_config"]["block_size"] = json!(ROWS);
                match causal {
                    Some(value) => c["is_causal"] = json!(value),
                    None => {
                        if let Value::Object(c) = c {
                            c.remove("is_causal");
                        }
                    }
                }
            };
            // A convolution lets a row see the one before it, whatever the mask says.
            let quiet = |t: &mut Tiny| {
                t.change_all("_conv.kernel_projection", |v| v.fill(0.0));
                t.change_all("_conv.base_kernel", |v| {
                    // Two sides of two taps: only the row itself passes.
                    let width = v.len() / 4;
                    for (i, x) in v.iter_mut().enumerate() {
                        *x = f32::from(u8::from((i / width).is_multiple_of(2)));
                    }
                });
            };
            let s = Setting::with(backend, scratch, kind, CONTEXT, None, tweak, quiet)?;
            let rule_is_causal = causal.unwrap_or(slides);
            let place = format!("{kind:?}, is_causal {causal:?}, sliding: {slides}");
            let hidden = |context: &DraftState<B>, rows: usize| -> Result<Vec<Vec<f32>>> {
                let all = backend.read(&s.draft.trace(context, 5, rows)?.hidden)?;
                Ok(all.chunks(all.len() / rows).map(<[f32]>::to_vec).collect())
            };
            let differs = |a: &[f32], b: &[f32]| apart(a, b) > 1e-6;
            let base_rows = s.rows()?;
            let mut base = s.draft.new_state()?;
            s.draft.absorb(&mut base, clone(&base_rows), CONTEXT)?;
            let plain = hidden(&base, ROWS)?;
            for key in 0..CONTEXT {
                let mut changed = s.draft.new_state()?;
                let rows = with_row_changed(backend, &base_rows, key)?;
                s.draft.absorb(&mut changed, rows, CONTEXT)?;
                for (row, (own, plain)) in hidden(&changed, ROWS)?.iter().zip(&plain).enumerate() {
                    let distance = CONTEXT + row - key;
                    let visible = !slides || distance < WINDOW;
                    if differs(own, plain) != visible {
                        found.push(format!("{place}: row {row} and context row {key}"));
                    }
                }
            }
            // A block cut before key j: rows before j change iff they saw it.
            for key in 1..ROWS {
                let (with, without) = (hidden(&base, key + 1)?, hidden(&base, key)?);
                for row in 0..key {
                    if differs(&with[row], &without[row]) == rule_is_causal {
                        found.push(format!("{place}: row {row} and block row {key}"));
                    }
                }
            }
            // Every row sees the anchor.
            let other = backend.read(&s.draft.trace(&base, 6, ROWS)?.hidden)?;
            for (row, plain) in plain.iter().enumerate() {
                if !differs(&other[row * plain.len()..][..plain.len()], plain) {
                    found.push(format!("{place}: row {row} does not see the anchor"));
                }
            }
        }
    }
    Ok(found)
}

fn clone<B: Backend>(rows: &Context<B>) -> Context<B> {
    Context {
        taps: rows.taps.clone(),
        rows: rows.rows,
    }
}

fn with_row_changed<B: Backend>(b: &B, rows: &Context<B>, row: usize) -> Result<Context<B>> {
    let taps = rows
        .taps
        .iter()
        .map(|t| {
            let mut numbers = b.read(t)?;
            let width = numbers.len() / rows.rows;
            for (i, n) in numbers[row * width..][..width].iter_mut().enumerate() {
                *n = if i % 2 == 0 { *n + 1.0 } else { -*n };
            }
            b.upload(&numbers, &[1, rows.rows, width], b.dtype())
        })
        .collect::<Result<_>>()?;
    Ok(Context {
        taps,
        rows: rows.rows,
    })
}
