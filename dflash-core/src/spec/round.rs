//! One round: draft → verify → accept → clip → commit → absorb.
//!
//! The tokens of a round are the target's own choices, row by row, so the text is the target's
//! whatever the draft proposed. A good proposal only makes more of the rows count.

use std::num::NonZeroUsize;
use std::time::Instant;

use super::accept::accept;
use super::drafter::DraftModel;
use super::report::{FinishReason, Round};
use super::sampler::{Choice, RowRule};
use super::sequence::Sequence;
use super::target::{Pending, Rows, TargetModel};
use crate::Result;

/// Runs one round of a sequence whose prompt has been processed.
///
/// # Errors
/// The target's. The sequence's caches then stand where the last round left them.
pub(super) fn run<T: TargetModel, D: DraftModel<T>>(
    target: &T,
    draft: Option<&D>,
    seq: &mut Sequence<T, D>,
) -> Result<Round> {
    let start = Instant::now();
    let mut round = Round {
        context: seq.position,
        ..Round::default()
    };

    // 1. Draft. The block shrinks near the end: with r tokens still wanted, r + 1 rows are enough.
    let block = seq.policy.rows(seq.wanted());
    let proposal = draft
        .filter(|_| block > 1)
        .and_then(|draft| seq.propose(draft, block, &mut round));
    round.times.draft = start.elapsed();

    // 2. Verify: the target runs over the anchor and the proposals, and every row chooses the token after it.
    let verifying = Instant::now();
    let mut pending = target.verify(&mut seq.target, seq.anchor, proposal.as_ref())?;
    let rule = RowRule {
        sampling: seq.sampling,
        position: seq.position + 1,
        occurred: &seq.occurred,
    };
    let verdict = pending.choose(&rule)?;
    round.times.verify = verifying.elapsed();

    // 3. Accept the proposals that agree with the target; the first row that disagrees adds its own choice.
    // A draft that is not finite proposed nothing, whatever ids it left.
    let drafted = if verdict.draft_finite {
        verdict.drafted.as_slice()
    } else {
        &[]
    };
    let acceptance = accept(drafted, verdict.rows.iter().map(|choice| choice.id));
    let mut tokens: Vec<u32> = verdict
        .rows
        .iter()
        .take(acceptance.produced)
        .map(|choice| choice.id)
        .collect();
    let close = rule.score_rounding(seq.row_rounding);

    // 4. Clip at an end token, a stop string or the budget, before anything is committed.
    let finish = seq.output.take(&mut tokens);

    // 5. Commit exactly the rows whose tokens stay; the last token is the new anchor.
    let committing = Instant::now();
    let keep = NonZeroUsize::new(tokens.len())
        .expect("invariant: a round produces at least the target's own token");
    let rows = 1 + verdict.drafted.len();
    let context = pending.commit(keep)?;
    round.times.commit = committing.elapsed();
    seq.advance(&tokens);

    // 6. Absorb: the committed rows become context of the draft.
    let absorbing = Instant::now();
    seq.policy.learn(&verdict);
    if finish.is_none() {
        seq.absorb(draft, context, seq.position, &mut round);
    }
    round.times.draft += absorbing.elapsed();

    round.width = rows;
    round.drafted = verdict.drafted.len();
    round.accepted = acceptance.accepted.min(tokens.len());
    round.produced = tokens.len();
    round.near_ties = near_ties(verdict.rows.iter().take(tokens.len()), close);
    seq.finish = finish;
    let models = round.times.draft + round.times.verify + round.times.commit;
    round.times.host = start.elapsed().saturating_sub(models);
    Ok(round)
}

/// Choices that rounding as large as `close` could have turned.
fn near_ties<'c>(choices: impl Iterator<Item = &'c Choice>, close: f32) -> usize {
    choices.filter(|choice| choice.margin < close).count()
}

/// Makes the first token, drawn from the prompt's last row, the anchor.
pub(super) fn first<T: TargetModel, D: DraftModel<T>>(
    seq: &mut Sequence<T, D>,
    choice: Choice,
    close: f32,
) -> Option<FinishReason> {
    let id = choice.id;
    seq.stats.near_ties += near_ties([&choice].into_iter(), close);
    let mut tokens = vec![id];
    let finish = seq.output.take(&mut tokens);
    seq.occurred.insert(id);
    seq.anchor = id;
    finish
}
