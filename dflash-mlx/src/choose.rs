//! From logits to tokens, on the device as far as no request's noise is needed.

use dflash_core::backend::fallback::host::{self, Picked};
use dflash_core::backend::{Drafted, PathRule};
use dflash_core::spec::{Choice, RowRule, Verdict};
use dflash_core::{Error, Result};
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::ops::{argpartition_axis, concatenate, sum_axis};
use mlx_rs::{Array, Dtype};

use crate::array::{at, cast, int, part, size, wide};
use crate::backend::Mlx;

/// Ids travel as float32, which counts exactly up to here.
pub(crate) const MAX_VOCAB: usize = 1 << 24;

/// `[1]`: 1 if all numbers are finite, else NaN.
fn finite(x: &Array) -> Result<Array, Exception> {
    let zero = x.multiply(Array::from_f32(0.0))?.sum(false)?;
    zero.add(Array::from_f32(1.0))?.reshape(&[1])
}

/// The best token of each row of `[rows, vocab]`.
pub(crate) fn propose(logits: &Array) -> Result<Drafted<Mlx>, Exception> {
    let x = wide(logits)?;
    Ok(Drafted {
        ids: argmax_axis(&x, -1, false)?,
        rows: size(&x, 0),
        finite: finite(&x)?,
        rivals: None,
    })
}

/// Walks DFlash 2's candidate selector on `logits` `[slots, vocab]` and `hidden` `[slots, rank]`.
///
/// All scores of a slot's candidates after each candidate of the slot before are one product, so the
/// walk itself only looks numbers up.
pub(crate) fn path(
    logits: &Array,
    hidden: &Array,
    rule: &PathRule<'_, Mlx>,
) -> Result<Drafted<Mlx>, Exception> {
    let (logits, hidden) = (wide(logits)?, wide(hidden)?);
    let (slots, vocab, rank) = (size(&logits, 0), size(&logits, 1), size(&hidden, 1));
    let k = rule.top_k.min(vocab);
    let ids = if k < vocab {
        part(
            &argpartition_axis(logits.negative()?, int(k - 1), -1)?,
            1,
            0,
            k,
        )?
    } else {
        let all: Vec<u32> = (0..u32::try_from(vocab).unwrap_or(u32::MAX)).collect();
        mlx_rs::ops::broadcast_to(Array::from_slice(&all, &[1, int(k)]), &[int(slots), int(k)])?
    };
    // Ascending ids: equal scores then go to the lowest.
    let ids = mlx_rs::ops::sort_axis(&ids, -1)?;
    let own = logits.take_along_axis(&ids, -1)?;
    let flat = ids.reshape(&[int(slots * k)])?;
    let shape = [int(slots), int(k), int(rank)];
    let successors = wide(&rule.successor.rows(&flat)?)?.reshape(&shape)?;
    let anchor = wide(
        &rule
            .predecessor
            .rows(&Array::from_slice(&[rule.anchor], &[1]))?,
    )?;
    let hidden = hidden.reshape(&[int(slots), 1, int(rank)])?;
    let after = |before: &Array, slots: &Array, hidden: &Array| -> Result<Array, Exception> {
        before.multiply(hidden)?.matmul(slots.swap_axes(1, 2)?)
    };
    let first = after(
        &anchor.reshape(&[1, 1, int(rank)])?,
        &part(&successors, 0, 0, 1)?,
        &part(&hidden, 0, 0, 1)?,
    )?
    .reshape(&[1, int(k)])?
    .add(part(&own, 0, 0, 1)?)?;
    let mut sums = finite(&first)?;
    let mut chosen = vec![argmax_axis(&first, -1, false)?];
    if slots > 1 {
        let rest = |t: &Array| part(t, 0, 1, slots - 1);
        let before = part(&flat, 0, 0, (slots - 1) * k)?;
        let before = wide(&rule.predecessor.rows(&before)?)?.reshape(&[
            int(slots - 1),
            int(k),
            int(rank),
        ])?;
        let scores = after(&before, &rest(&successors)?, &rest(&hidden)?)?
            .add(rest(&own)?.reshape(&[int(slots - 1), 1, int(k)])?)?;
        sums = sums.multiply(finite(&scores)?)?;
        // The best candidate after each candidate of the slot before.
        let next = argmax_axis(&scores, -1, false)?;
        for slot in 1..slots {
            let row = part(&next, 0, slot - 1, 1)?.reshape(&[int(k)])?;
            chosen.push(row.take_axis(&chosen[slot - 1], 0)?);
        }
    }
    let chosen = concatenate(&chosen, 0)?.reshape(&[int(slots), 1])?;
    Ok(Drafted {
        ids: ids.take_along_axis(&chosen, -1)?.reshape(&[int(slots)])?,
        rows: slots,
        finite: finite(&logits)?.multiply(sums)?,
        rivals: None,
    })
}

/// Draws the rows of `[rows, vocab]` and brings choices and draft to the host in one array, which `read` reads.
///
/// A greedy row comes as its token, its margin and a zero if it is finite. Any other rule needs the
/// row's logits, which then take that place.
pub(crate) fn draw(
    logits: &Array,
    draft: Option<&Drafted<Mlx>>,
    rule: &RowRule<'_>,
    read: impl FnOnce(&Array) -> Result<Vec<f32>>,
) -> Result<Result<Verdict, usize>> {
    let (rows, vocab) = (size(logits, 0), size(logits, 1));
    let greedy = rule.sampling.is_greedy() && rule.sampling.repetition_penalty == 1.0;
    let parts = at("draw", queued(logits, draft, greedy))?;
    let numbers = read(&at("draw", concatenate(&parts, 0))?)?;
    let own = rows * if greedy { 3 } else { vocab };
    let expected = own + draft.map_or(0, |d| d.rows + 1 + if d.rivals.is_some() { 2 } else { 0 });
    if numbers.len() != expected {
        return Err(Error::shape("drawing: numbers", expected, numbers.len()));
    }
    let (own, rest) = numbers.split_at(own);
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
    logits: &Array,
    draft: Option<&Drafted<Mlx>>,
    greedy: bool,
) -> Result<Vec<Array>, Exception> {
    let x = wide(logits)?;
    let mut parts = if greedy {
        let ids = argmax_axis(&x, -1, true)?;
        let best = x.take_along_axis(&ids, -1)?;
        // One number put into every row's best place.
        let others = x.put_along_axis(&ids, Array::from_f32(f32::NEG_INFINITY), -1)?;
        let second = others.max_axis(-1, true)?;
        let zero = sum_axis(x.multiply(Array::from_f32(0.0))?, -1, false)?;
        vec![ids, best.subtract(second)?, zero]
    } else {
        vec![x]
    };
    if let Some(draft) = draft {
        parts.extend([draft.ids.clone(), draft.finite.clone()]);
        parts.extend(draft.rivals.clone());
    }
    parts
        .iter()
        .map(|t| cast(t, Dtype::Float32)?.reshape(&[-1]))
        .collect()
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
