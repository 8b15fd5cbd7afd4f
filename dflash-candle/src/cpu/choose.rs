//! From numbers to choices: routes of experts, proposals, draws.

use dflash_core::backend::fallback::host::{self, Candidates, Codes, Picked};
use dflash_core::backend::{Drafted, MoeParams, PathRule};
use dflash_core::spec::{Choice, ProposalRule, RowRule, Verdict};
use dflash_core::{Error, Result};

use super::CandleCpu;
use super::view::view;
use super::weight::CpuWeight;
use crate::kernels::cpu::{self as kernels, Cpu};

/// Experts and their factors per row: softmax over all, the best `top_k`, best first.
pub(super) fn routes(
    cpu: &Cpu,
    logits: &[f32],
    experts: usize,
    params: &MoeParams,
) -> (Vec<u32>, Vec<f32>) {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(experts) {
        let largest = row.iter().fold(f32::NEG_INFINITY, |m, l| m.max(*l));
        let mut p: Vec<f32> = row.iter().map(|l| l - largest).collect();
        kernels::exp_in_place(cpu, &mut p);
        let sum: f32 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        let mut best = kernels::top_k(cpu, &p, params.top_k);
        // A row that is not a number has no best; any experts carry it on to the logits, where it is found.
        best.extend(
            (0u32..)
                .map(|id| (id, f32::NAN))
                .take(params.top_k - best.len()),
        );
        let total: f32 = if params.normalize {
            best.iter().map(|b| b.1).sum()
        } else {
            1.0
        };
        ids.extend(best.iter().map(|b| b.0));
        weights.extend(best.iter().map(|b| b.1 / total));
    }
    (ids, weights)
}

/// A token per slot.
pub(super) fn propose(
    cpu: &Cpu,
    logits: &[f32],
    vocab: usize,
    rule: &ProposalRule,
) -> Result<Picked> {
    if rule.coupling.is_some() {
        return host::propose(logits, vocab, rule);
    }
    let rows = logits.chunks_exact(vocab);
    let best: Vec<_> = rows.map(|row| kernels::argmax(cpu, row)).collect();
    Ok(Picked {
        ids: best
            .iter()
            .map(|b| if b.finite { b.id } else { 0 })
            .collect(),
        finite: best.iter().all(|b| b.finite),
        rivals: None,
    })
}

/// A chain through the slots' best tokens.
pub(super) fn path(
    cpu: &Cpu,
    logits: &[f32],
    vocab: usize,
    hidden: &[f32],
    path: &PathRule<'_, CandleCpu>,
    rule: &ProposalRule,
) -> Result<Picked> {
    let rank = path.predecessor.inputs();
    if path.successor.inputs() != rank {
        return Err(Error::shape(
            "path selection: codebook widths",
            rank,
            path.successor.inputs(),
        ));
    }
    let candidates = if path.top_k > 0 && kernels::all_finite(cpu, logits) {
        let slots: Vec<_> = logits
            .chunks_exact(vocab)
            .map(|row| kernels::top_k(cpu, row, path.top_k.min(vocab)))
            .collect();
        Candidates::from_slots(&slots, true)
    } else {
        host::candidates(logits, vocab, path.top_k)?
    };
    let gather = |book: &CpuWeight, ids: &[u32]| -> Result<Vec<f32>> {
        book.check_ids("path selection: codebook", ids)?;
        let mut rows = vec![0.0; ids.len() * rank];
        kernels::embedding(cpu, book.matrix(), ids, 1.0, &mut rows);
        Ok(rows)
    };
    let with_anchor: Vec<u32> = std::iter::once(path.anchor)
        .chain(candidates.ids().iter().copied())
        .collect();
    let codes = Codes {
        rank,
        hidden,
        predecessors: &gather(path.predecessor, &with_anchor)?,
        successors: &gather(path.successor, candidates.ids())?,
    };
    host::walk(&candidates, &codes, rule)
}

/// Draws rows up to the first that disagrees with the draft.
pub(super) fn draw(
    cpu: &Cpu,
    logits: &[f32],
    vocab: usize,
    draft: Option<&Drafted<CandleCpu>>,
    rule: &RowRule<'_>,
) -> Result<Result<Verdict, usize>> {
    let picked = draft.map(picked).transpose()?;
    if !(rule.sampling.is_greedy() && rule.sampling.repetition_penalty == 1.0) {
        return host::draw(logits, vocab, picked, rule);
    }
    host::draw_with(logits, vocab, picked, |_, row, _| {
        if !kernels::all_finite(cpu, row) {
            return None;
        }
        let best = kernels::top_k(cpu, row, 2);
        let second = best.get(1).map_or(f32::NEG_INFINITY, |second| second.1);
        best.first().map(|best| Choice {
            id: best.0,
            margin: best.1 - second,
        })
    })
}

fn picked(draft: &Drafted<CandleCpu>) -> Result<Picked> {
    let finite = view(&draft.finite);
    Picked::from_parts(
        draft.ids.to_vec(),
        finite.dense("draw")?,
        draft.rivals.as_deref(),
    )
}
