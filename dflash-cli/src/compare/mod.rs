//! The same prompts on several backends: what every layer puts out, which tokens come, how fast.
//!
//! One backend is the baseline. All others run the same requests, and then the baseline's text as one pass, so that layers
//! and logits are compared on the same tokens even after texts have parted.

mod difference;
mod judge;

use std::time::Duration;

use dflash_core::spec::Probe;
use dflash_core::{Error, Result};

use crate::load::{BackendChoice, LoadOptions, load_among, model_info};
use crate::pick::pick;
use crate::{BackendFactory, Engine, Event, LoadReport, Report, Request, Step, Support};
pub use difference::{Difference, Place, tolerance};
pub use judge::Parting;

use dflash_core::load::ModelFiles;

/// What to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// The models, and how they are loaded; its backend is not looked at.
    pub load: LoadOptions,
    /// Names of backends; empty takes all that run the model.
    pub backends: Vec<String>,
    /// The requests, of which each is run with and without the draft. An empty list of end ids takes the model's own.
    pub requests: Vec<Request>,
    /// Whether requests go on after the model's end tokens.
    pub ignore_end: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Comparison {
    /// The backends, the baseline first.
    pub sides: Vec<Side>,
    /// Per request, one result per side.
    pub results: Vec<Vec<Outcome>>,
    /// Backends that were left out, with the reason.
    pub notes: Vec<String>,
}

/// A backend that took part.
#[derive(Debug, Clone)]
pub struct Side {
    /// What it loaded.
    pub report: LoadReport,
    /// How long that took.
    pub load_time: Duration,
    /// The largest relative difference from the baseline that its number format explains.
    pub tolerance: f32,
}

/// One request on one backend.
#[derive(Debug)]
pub struct Outcome {
    /// With the draft, or without if there is none.
    pub report: Report,
    /// Without the draft, if there is one.
    pub plain: Option<Report>,
    /// Where the text with the draft parts from the one without.
    pub own_parting: Option<Parting>,
    /// Where the text parts from the baseline's.
    pub parting: Option<Parting>,
    /// Per layer, how far its output is from the baseline's; empty for the baseline.
    pub layers: Vec<Difference>,
    /// How far the logits are; `None` for the baseline.
    pub logits: Option<Difference>,
    /// The first place that is off by more than the tolerance.
    pub first_divergence: Option<Place>,
}

impl Comparison {
    /// Whether all tokens are equal but for what the levels of exactness and the number formats allow.
    pub fn agrees(&self) -> bool {
        self.outcomes().all(|o| {
            [&o.parting, &o.own_parting]
                .into_iter()
                .flatten()
                .all(|p| p.allowed)
        })
    }

    /// Whether no layer is off by more than the tolerance either.
    pub fn is_close(&self) -> bool {
        self.agrees() && self.outcomes().all(|o| o.first_divergence.is_none())
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.results.iter().flatten()
    }
}

/// The backends that a model runs on here: the named ones, or all that do, and why others do not. The baseline comes first:
/// the reference backend if it takes part.
///
/// # Errors
/// A named backend that is not built in, has no such device or does not run the model; a name given twice; no backend at all.
pub fn backends(
    all: &[Box<dyn BackendFactory>],
    options: &CompareOptions,
) -> Result<(Vec<String>, Vec<String>)> {
    let files = ModelFiles::open(&options.load.model)?;
    let info = model_info(&files, files.target_config()?);
    let device = options.load.device;
    let named = |name: &str| BackendChoice::Named(name.to_owned());
    let mut names: Vec<String> = Vec::new();
    let mut notes = Vec::new();
    if options.backends.is_empty() {
        for factory in all {
            match pick(all, &named(factory.name()), device, &info) {
                Ok(_) => names.push(factory.name().to_owned()),
                Err(error) => notes.push(match factory.supports(&info) {
                    Support::Refused(reason) => format!("{} is left out: {reason}", factory.name()),
                    _ => format!("{} is left out: {error}", factory.name()),
                }),
            }
        }
    }
    for name in &options.backends {
        let choice = match name.as_str() {
            "auto" => BackendChoice::Auto,
            name => named(name),
        };
        let name = pick(all, &choice, device, &info)?.0.name();
        if names.iter().any(|n| n == name) {
            let reason = format!("`{name}` is given twice");
            return Err(Error::request("backends", reason));
        }
        names.push(name.to_owned());
    }
    if names.is_empty() {
        pick(all, &BackendChoice::Auto, device, &info)?;
    }
    if let Some(at) = names.iter().position(|n| n == "reference") {
        let reference = names.remove(at);
        names.insert(0, reference);
    }
    Ok((names, notes))
}

/// Loads each backend in turn and runs all requests on it. `seen` is told of every backend that has been loaded.
///
/// # Errors
/// As [`backends`]; or whatever loading and running find.
pub fn compare(
    all: &[Box<dyn BackendFactory>],
    options: &CompareOptions,
    seen: &mut dyn FnMut(&LoadReport),
) -> Result<Comparison> {
    let (names, notes) = backends(all, options)?;
    let mut sides: Vec<Side> = Vec::new();
    let mut results: Vec<Vec<Outcome>> = options.requests.iter().map(|_| Vec::new()).collect();
    let mut baseline: Vec<Probe> = Vec::new();
    for name in names {
        let start = std::time::Instant::now();
        let mut loaded = load_among(
            all,
            &LoadOptions {
                backend: BackendChoice::Named(name),
                ..options.load.clone()
            },
        )?;
        let report = loaded.engine.report().clone();
        seen(&report);
        let first = sides.first().map_or(report.dtype, |s| s.report.dtype);
        sides.push(Side {
            load_time: start.elapsed(),
            tolerance: tolerance(report.dtype).max(tolerance(first)),
            report,
        });
        let pair = Pair {
            baseline: &sides[0],
            side: &sides[sides.len() - 1],
        };
        for (at, request) in options.requests.iter().enumerate() {
            let end_ids = match (options.ignore_end, request.end_ids.is_empty()) {
                (true, _) => Vec::new(),
                (false, true) => pair.side.report.end_ids.clone(),
                (false, false) => request.end_ids.clone(),
            };
            let request = Request {
                end_ids,
                draft: options.load.draft.is_some(),
                ..request.clone()
            };
            let engine = loaded.engine.as_mut();
            let mut outcome = run_both(engine, &request)?;
            let tokens = results[at]
                .first()
                .map_or(&outcome.report.tokens, |first| &first.report.tokens);
            let probe = probe(engine, &request, tokens)?;
            if let (Some(first), Some(base)) = (results[at].first(), baseline.get(at)) {
                pair.judge(&request, (first, base), (&mut outcome, &probe));
            } else {
                baseline.push(probe);
            }
            results[at].push(outcome);
        }
    }
    Ok(Comparison {
        sides,
        results,
        notes,
    })
}

/// The baseline and the backend that is compared with it.
#[derive(Debug, Clone, Copy)]
struct Pair<'a> {
    baseline: &'a Side,
    side: &'a Side,
}

impl Pair<'_> {
    fn judge(self, request: &Request, first: (&Outcome, &Probe), own: (&mut Outcome, &Probe)) {
        let ((first, base), (outcome, probe)) = (first, own);
        let layers = base.layers.iter().zip(&probe.layers);
        outcome.layers = layers.map(|(a, b)| Difference::of(a, b)).collect();
        let logits = Difference::of(&base.logits.concat(), &probe.logits.concat());
        outcome.logits = Some(logits);
        outcome.first_divergence = Place::first(&outcome.layers, logits, self.side.tolerance);
        let roundings = [self.baseline, self.side].map(|s| s.report.row_rounding.unwrap_or(0.0));
        outcome.parting = judge::across(
            request,
            (&first.report.tokens, &base.logits),
            (&outcome.report.tokens, &probe.logits),
            self.side.tolerance,
            roundings.iter().sum(),
        );
    }
}

/// What a text's tokens are chosen from, computed as one pass.
fn probe(engine: &mut dyn Engine, request: &Request, tokens: &[u32]) -> Result<Probe> {
    let seen = &tokens[..tokens.len().saturating_sub(1)];
    let ids = [&request.prompt, seen].concat();
    engine.probe(&ids, request.prompt.len() - 1)
}

/// Runs a request with the draft and without it.
fn run_both(engine: &mut dyn Engine, request: &Request) -> Result<Outcome> {
    let (mut plain, mut own_parting) = (None, None);
    if request.draft {
        let alone = Request {
            draft: false,
            ..request.clone()
        };
        plain = Some(run(engine, &alone)?.0);
    }
    let exactness = engine.report().exactness;
    let (report, near) = run(engine, request)?;
    if let Some(plain) = &plain {
        own_parting = judge::within(exactness, &plain.tokens, &report.tokens, &near);
    }
    Ok(Outcome {
        report,
        plain,
        own_parting,
        parting: None,
        layers: Vec::new(),
        logits: None,
        first_divergence: None,
    })
}

/// Runs a request to its end: its report, and per token whether the round that made it counted a near-tie.
fn run(engine: &mut dyn Engine, request: &Request) -> Result<(Report, Vec<bool>)> {
    let id = engine.start(request.clone())?;
    let mut near = Vec::new();
    loop {
        let step = engine.step(id, &mut |event| {
            if let Event::Round(round) = event {
                near.extend(std::iter::repeat_n(round.near_ties > 0, round.produced));
            }
        })?;
        if let Step::Finished(report) = step {
            // The first token comes from the prompt, which is run alike with and without a draft.
            near.insert(0, false);
            return Ok((*report, near));
        }
    }
}
