//! A comparison as a JSON object. What was not measured or does not apply is null.

use dflash::compare::{Comparison, Difference, Outcome, Parting, Side};
use dflash::{Error, Report};
use serde_json::{Value, json};

use crate::failure::Failure;

/// The object of `compare --json`; its keys are a contract.
pub(super) fn document(
    comparison: &Comparison,
    labels: &[String],
    notes: &[String],
) -> Result<String, Failure> {
    let first = &comparison.sides[0].report;
    let prompts = labels.iter().zip(&comparison.results);
    let document = json!({
        "model": first.target,
        "draft": first.draft.as_ref().map(|d| &d.reference),
        "baseline": first.backend,
        "agrees": comparison.agrees(),
        "close": comparison.is_close(),
        "backends": comparison.sides.iter().map(side).collect::<Vec<_>>(),
        "prompts": prompts.map(|(label, outcomes)| json!({
            "prompt": label,
            "prompt_tokens": outcomes.first().map(|o| o.report.prompt_tokens),
            "results": comparison.sides.iter().zip(outcomes).map(result).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "notes": notes,
    });
    let text = serde_json::to_string(&document);
    let text = text.map_err(|error| Error::request("json", error.to_string()))?;
    Ok(text + "\n")
}

fn side(side: &Side) -> Value {
    json!({
        "backend": side.report.backend,
        "device": side.report.device,
        "dtype": side.report.dtype.name(),
        "exactness": side.report.exactness.to_string(),
        "row_rounding": side.report.row_rounding,
        "tolerance": side.tolerance,
        "load_ms": side.load_time.as_secs_f64() * 1e3,
    })
}

fn result((side, outcome): (&Side, &Outcome)) -> Value {
    let report = &outcome.report;
    json!({
        "backend": side.report.backend,
        "text": report.text,
        "tokens": report.tokens,
        "finish_reason": report.finish_reason.name(),
        "acceptance_lengths": report.acceptance_lengths,
        "tokens_per_round": report.tokens_per_round(),
        "drafted": report.drafted,
        "accepted": report.accepted,
        "generation_tps": report.generation_tps(),
        "plain_tps": outcome.plain.as_ref().and_then(Report::generation_tps),
        "near_ties": report.near_ties,
        "draft_active": report.draft_active,
        "parts_from_plain": outcome.own_parting.as_ref().map(parting),
        "parts_from_baseline": outcome.parting.as_ref().map(parting),
        "layers": outcome.layers.iter().enumerate().map(|(layer, d)| {
            let mut value = difference(*d);
            value["layer"] = layer.into();
            value
        }).collect::<Vec<_>>(),
        "logits": outcome.logits.map(difference),
        "first_divergence": outcome.first_divergence.map(|place| place.to_string()),
    })
}

/// A number that is not finite, as no JSON number is, becomes null.
fn difference(difference: Difference) -> Value {
    json!({"max_abs": difference.absolute, "max_rel": difference.relative})
}

fn parting(parting: &Parting) -> Value {
    json!({
        "token": parting.at,
        "expected": parting.expected,
        "found": parting.found,
        "allowed": parting.allowed,
        "reason": parting.reason,
    })
}
