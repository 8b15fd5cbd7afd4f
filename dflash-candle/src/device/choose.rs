//! From logits to tokens with at most one read-back.

use candle_core::{DType, Tensor};
use dflash_core::backend::Drafted;
use dflash_core::backend::fallback::host::{self, Picked};
use dflash_core::spec::{Choice, RowRule, Verdict};
use dflash_core::{Error, Result};

use super::CandleDevice;
use super::maths::{best, columns, finite_zero, wide, without};

/// Ids travel as float32, which counts exactly up to here.
pub(super) const MAX_VOCAB: usize = 1 << 24;

/// The best token of each row of `[rows, vocab]`, and whether all numbers are finite; both stay on the device.
pub(super) fn propose(logits: &Tensor) -> candle_core::Result<Drafted<CandleDevice>> {
    let x = wide(logits)?;
    let (_, ids) = best(&x, &columns(x.dim(1)?, x.device())?)?;
    Ok(Drafted {
        ids: ids.flatten_all()?.to_dtype(DType::U32)?,
        rows: x.dim(0)?,
        finite: finite_zero(&x)?.sum_keepdim(0)?.affine(1.0, 1.0)?,
        rivals: None,
    })
}

/// Draws the rows of `[rows, vocab]` and brings choices and draft to the host in one tensor, which `read` reads.
///
/// A greedy row comes as its token, its margin and a zero if it is finite. Any other rule needs the
/// row's logits, which then take that place.
pub(super) fn draw(
    logits: &Tensor,
    draft: Option<&Drafted<CandleDevice>>,
    rule: &RowRule<'_>,
    read: impl FnOnce(&Tensor) -> Result<Vec<f32>>,
) -> Result<Result<Verdict, usize>> {
    let failed = |e| Error::backend("draw", e);
    let (rows, vocab) = logits.dims2().map_err(failed)?;
    let greedy = rule.sampling.is_greedy() && rule.sampling.repetition_penalty == 1.0;
    let all = queued(logits, draft, greedy)
        .and_then(|parts| Tensor::cat(&parts, 0))
        .map_err(failed)?;
    let numbers = read(&all)?;
    let (own, rest) = numbers.split_at(rows * if greedy { 3 } else { vocab });
    let picked = draft
        .map(|draft| {
            let (ids, rest) = rest.split_at(draft.rows);
            let (finite, rivals) = rest.split_at(1);
            let rivals = draft.rivals.as_ref().map(|_| whole(rivals));
            Picked::from_parts(whole(ids), finite, rivals.as_deref())
        })
        .transpose()?;
    if !greedy {
        return host::draw(own, vocab, picked, rule);
    }
    let (ids, rest) = own.split_at(rows);
    let (margins, zero) = rest.split_at(rows);
    host::draw_with(ids, 1, picked, |row, id, _| {
        (zero[row] == 0.0).then(|| Choice {
            id: whole(id)[0],
            margin: margins[row],
        })
    })
}

/// What the host has to know, as float32 vectors: the rows, then the draft's ids, its finite flag and its rivals.
fn queued(
    logits: &Tensor,
    draft: Option<&Drafted<CandleDevice>>,
    greedy: bool,
) -> candle_core::Result<Vec<Tensor>> {
    let x = wide(logits)?;
    let mut parts = if greedy {
        let columns = columns(x.dim(1)?, x.device())?;
        let (value, id) = best(&x, &columns)?;
        let (second, _) = best(&without(&x, &id, &columns)?, &columns)?;
        vec![id, (value - second)?, finite_zero(&x)?]
    } else {
        vec![x]
    };
    if let Some(draft) = draft {
        parts.extend([wide(&draft.ids)?, draft.finite.clone()]);
        if let Some(rivals) = &draft.rivals {
            parts.push(wide(rivals)?);
        }
    }
    parts.iter().map(Tensor::flatten_all).collect()
}

/// Ids that travelled as float32.
fn whole(ids: &[f32]) -> Vec<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "vocabularies are checked against MAX_VOCAB"
    )]
    ids.iter().map(|id| *id as u32).collect()
}
