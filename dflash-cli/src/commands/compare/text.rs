//! A comparison for people: a table per prompt, and one of its layers.

use dflash::Report;
use dflash::compare::{Comparison, Outcome, Parting, Side};

use super::table::{Style, Table};

/// The whole comparison.
pub(super) fn document(comparison: &Comparison, labels: &[String], style: Style) -> String {
    let mut text = heading(&models(comparison), 2, style);
    let mut sides = Table::new(words(&[
        "backend",
        "device",
        "dtype",
        "exactness",
        "tolerance",
        "loaded in",
    ]));
    for side in &comparison.sides {
        sides.row(vec![
            side.report.backend.into(),
            side.report.device.into(),
            side.report.dtype.to_string(),
            side.report.exactness.to_string(),
            format!("{:.0e}", side.tolerance),
            format!("{:.2} s", side.load_time.as_secs_f64()),
        ]);
    }
    text += &sides.write(style);
    for (number, (label, outcomes)) in labels.iter().zip(&comparison.results).enumerate() {
        let first = outcomes.first().map_or(0, |o| o.report.prompt_tokens);
        let title = format!(
            "Prompt {}, {first} tokens: {}",
            number + 1,
            shortened(label)
        );
        text += &heading(&title, 3, style);
        text += &runs(comparison, outcomes).write(style);
        if let Some(layers) = layers(comparison, outcomes) {
            text += "\n";
            text += &layers.write(style);
        }
        text += &remarks(comparison, outcomes, style);
    }
    text.push('\n');
    text += if comparison.is_close() {
        "Tokens and layers agree.\n"
    } else if comparison.agrees() {
        "Tokens agree; a layer is off by more than the tolerance.\n"
    } else {
        "Tokens differ beyond the stated exactness.\n"
    };
    text
}

fn models(comparison: &Comparison) -> String {
    let report = &comparison.sides[0].report;
    let target = &report.target;
    match &report.draft {
        Some(draft) => format!("{target} with {}", draft.reference),
        None => format!("{target}, plain decoding"),
    }
}

fn heading(title: &str, level: usize, style: Style) -> String {
    match style {
        Style::Markdown => format!("\n{} {title}\n\n", "#".repeat(level)),
        Style::Plain => format!("\n{title}\n"),
    }
    .trim_start_matches(if level == 2 { '\n' } else { '\0' })
    .to_owned()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

fn shortened(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 60 {
        return line;
    }
    let start: String = line.chars().take(59).collect();
    format!("{start}…")
}

/// A row per backend: its tokens, rounds and speed, and how far it is from the baseline.
fn runs(comparison: &Comparison, outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(words(&[
        "backend",
        "tokens",
        "compared",
        "near-ties",
        "tokens/round",
        "plain tok/s",
        "tok/s",
        "logits abs",
        "logits rel",
        "diverges at",
    ]));
    for (side, outcome) in comparison.sides.iter().zip(outcomes) {
        let compared = match (&outcome.parting, outcome.logits) {
            (_, None) => "baseline".into(),
            (None, _) => "equal".into(),
            (Some(parting), _) => parted(parting),
        };
        let plain = outcome.plain.as_ref();
        table.row(vec![
            side.report.backend.into(),
            outcome.report.tokens.len().to_string(),
            compared,
            outcome.report.near_ties.to_string(),
            outcome
                .report
                .tokens_per_round()
                .map_or_else(dash, |n| format!("{n:.2}")),
            speed(plain),
            speed(Some(&outcome.report)),
            outcome.logits.map_or_else(dash, |d| number(d.absolute)),
            outcome.logits.map_or_else(dash, |d| number(d.relative)),
            match (outcome.first_divergence, outcome.logits) {
                (Some(place), _) => place.to_string(),
                (None, Some(_)) => "nowhere".into(),
                (None, None) => dash(),
            },
        ]);
    }
    table
}

fn dash() -> String {
    "–".into()
}

fn speed(report: Option<&Report>) -> String {
    let speed = report.and_then(Report::generation_tps);
    speed.map_or_else(dash, |tps| format!("{tps:.1}"))
}

fn number(value: f32) -> String {
    if value == 0.0 {
        "0".into()
    } else {
        format!("{value:.1e}")
    }
}

fn parted(parting: &Parting) -> String {
    let allowed = if parting.allowed {
        "near-tie"
    } else {
        "DIFFERS"
    };
    format!("{allowed} at {}", parting.at)
}

/// A row per layer: each backend's largest difference from the baseline.
fn layers(comparison: &Comparison, outcomes: &[Outcome]) -> Option<Table> {
    let compared: Vec<(&Side, &Outcome)> = comparison
        .sides
        .iter()
        .zip(outcomes)
        .filter(|(_, o)| !o.layers.is_empty())
        .collect();
    let depth = compared.first()?.1.layers.len();
    let mut head = vec!["layer".to_owned()];
    for (side, _) in &compared {
        head.push(format!("{} abs", side.report.backend));
        head.push(format!("{} rel", side.report.backend));
    }
    let mut table = Table::new(head);
    for layer in 0..depth {
        let mut row = vec![layer.to_string()];
        for (_, outcome) in &compared {
            let difference = outcome.layers.get(layer);
            row.push(difference.map_or_else(dash, |d| number(d.absolute)));
            row.push(difference.map_or_else(dash, |d| number(d.relative)));
        }
        table.row(row);
    }
    Some(table)
}

/// Rounds, and every place where texts part.
fn remarks(comparison: &Comparison, outcomes: &[Outcome], style: Style) -> String {
    let mut lines = Vec::new();
    for (side, outcome) in comparison.sides.iter().zip(outcomes) {
        let name = side.report.backend;
        if outcome.plain.is_some() {
            let lengths = outcome.report.acceptance_lengths.iter();
            let lengths: Vec<String> = lengths.map(ToString::to_string).collect();
            lines.push(format!("{name}: tokens per round {}", lengths.join(" ")));
        }
        let own = outcome.own_parting.iter().map(|p| (p, "without the draft"));
        let other = outcome.parting.iter().map(|p| (p, "on the baseline"));
        lines.extend(own.chain(other).map(|(p, whose)| {
            let found = id(p.found);
            let expected = id(p.expected);
            format!(
                "{name}: token {} is {found}, {whose} {expected}: {}",
                p.at, p.reason
            )
        }));
    }
    let bullet = if style == Style::Markdown { "* " } else { "" };
    lines
        .iter()
        .fold(String::from("\n"), |text, line| text + bullet + line + "\n")
}

/// A token, or that the text has ended.
pub(super) fn id(token: Option<u32>) -> String {
    token.map_or_else(|| "none".into(), |id| id.to_string())
}
