//! `dflash compare`: the same prompts on several backends.

mod json;
mod settings;
mod table;
mod text;

use dflash::compare::{Comparison, compare};

use super::generate::verbose;
use crate::args::CompareArgs;
use crate::failure::Failure;
use crate::output::{Messages, Text};
use settings::{CompareSettings, Format};

/// Runs the command.
pub(crate) fn run(args: CompareArgs, messages: Messages) -> Result<(), Failure> {
    let settings = CompareSettings::new(args)?;
    verbose::subscribe(settings.verbose);
    let mut notes = settings.notes;
    let (mut options, prompts) = (settings.options, settings.prompts);
    // A backend that is not to be had is said before any file of a model is looked at twice.
    let all = dflash::factories();
    dflash::compare::backends(&all, &options)?;
    let labels = prompts.encode(&mut options, &mut notes)?;
    let first = options.requests[0].clone();
    let comparison = compare(&all, &options, &mut |report| {
        if settings.verbose > 0 {
            verbose::loaded(messages, report, &first);
        }
    })?;
    notes.extend(comparison.notes.iter().cloned());
    for side in &comparison.sides {
        let own = side.report.notes.iter();
        notes.extend(own.map(|note| format!("{}: {note}", side.report.backend)));
    }
    let mut out = Text::new();
    let document = match settings.format {
        Format::Json => json::document(&comparison, &labels, &notes)?,
        Format::Markdown => text::document(&comparison, &labels, table::Style::Markdown),
        Format::Text => text::document(&comparison, &labels, table::Style::Plain),
    };
    out.write(&document)?;
    if settings.format != Format::Json {
        notes.iter().for_each(|note| messages.note(note));
    }
    if settings.require_draft {
        require_draft(&comparison)?;
    }
    verdict(&comparison)
}

/// Fails if a draft was given up on the way.
fn require_draft(comparison: &Comparison) -> Result<(), Failure> {
    for (side, outcome) in pairs(comparison) {
        if !outcome.report.draft_active {
            let reason = outcome.report.draft_inactive_reason.as_deref();
            let message = format!(
                "require-draft: the draft was not in use at the end on the {} backend ({})",
                side.report.backend,
                reason.unwrap_or("it was never used")
            );
            let hint = "leave out `--require-draft` to accept plain decoding";
            return Err(Failure::work("E-DRAFT-INACTIVE", message, hint));
        }
    }
    Ok(())
}

fn pairs(
    comparison: &Comparison,
) -> impl Iterator<Item = (&dflash::compare::Side, &dflash::compare::Outcome)> {
    let rows = comparison.results.iter();
    rows.flat_map(|row| comparison.sides.iter().zip(row))
}

/// Names the first tokens that differ although nothing allows it.
fn verdict(comparison: &Comparison) -> Result<(), Failure> {
    if comparison.agrees() {
        return Ok(());
    }
    let parted = pairs(comparison).find_map(|(side, outcome)| {
        let own = outcome
            .own_parting
            .as_ref()
            .map(|p| ("its own plain decoding's", p));
        let other = outcome.parting.as_ref().map(|p| ("the baseline's", p));
        let parting = own.into_iter().chain(other).find(|(_, p)| !p.allowed);
        parting.map(|(whose, p)| (side.report.backend, whose, p))
    });
    let message = parted.map_or_else(String::new, |(backend, whose, p)| {
        format!(
            "tokens differ beyond the stated exactness: on {backend}, token {} is {}, {whose} is {} ({})",
            p.at,
            text::id(p.found),
            text::id(p.expected),
            p.reason
        )
    });
    let hint = "the first layer that is off shows where to look; `--dtype f32` rules out rounding";
    Err(Failure::work("E-COMPARE", message, hint))
}
