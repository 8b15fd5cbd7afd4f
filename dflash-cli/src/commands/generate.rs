//! `dflash generate`: a prompt in, its continuation out.

mod interrupt;
mod json;
pub(super) mod prompt;
mod trace;
pub(super) mod verbose;
mod view;

use dflash::{Engine, Loaded, Report, Request, Step};

use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::output::{Messages, Reader};
use crate::settings::GenerateSettings;
use trace::Trace;
use view::View;

/// Runs the command. Ctrl-C ends it well, with the text so far; so does a reader that closes standard output.
pub(crate) fn run(args: GenerateArgs, messages: Messages) -> Result<(), Failure> {
    let settings = GenerateSettings::new(args)?;
    let trace = settings.trace.as_deref().map(Trace::create).transpose()?;
    let draft = settings.load.draft.is_some();
    verbose::subscribe(settings.verbose);
    interrupt::watch();

    let Loaded {
        mut engine,
        tokenizer,
        ..
    } = dflash::load(&settings.load)?;
    let loaded = engine.report().clone();
    let mut notes = settings.notes;
    notes.extend(loaded.notes.iter().cloned());
    let prompt = prompt::encode(settings.prompt, tokenizer.as_deref(), &mut notes)?;
    let end_ids = if settings.ignore_eos {
        Vec::new()
    } else {
        loaded.end_ids.clone()
    };
    let request = Request {
        prompt,
        end_ids,
        draft,
        ..settings.request
    };

    let mut view = View::new(messages, settings.json, settings.verbose, trace);
    view.begin(&loaded, &request, notes);
    match drive(engine.as_mut(), request, &mut view) {
        Ok(Some(report)) => {
            view.finish(&report, &loaded)?;
            if settings.require_draft && !report.draft_active {
                return Err(without_draft(&report));
            }
            Ok(())
        }
        Ok(None) => view.close(),
        Err(failure) => {
            view.close()?;
            Err(failure)
        }
    }
}

/// Steps a request to its end. `None`: nobody reads the text any more.
fn drive(
    engine: &mut dyn Engine,
    request: Request,
    view: &mut View,
) -> Result<Option<Report>, Failure> {
    let id = engine.start(request)?;
    interrupt::accept();
    loop {
        if interrupt::asked() {
            return Ok(Some(engine.cancel(id)?));
        }
        let mut shown = Ok(Reader::There);
        let step = engine.step(id, &mut |event| {
            if matches!(shown, Ok(Reader::There)) {
                shown = view.event(event);
            }
        })?;
        let finished = match step {
            Step::Finished(report) => Some(*report),
            Step::Running => None,
        };
        match (shown, finished) {
            (Ok(Reader::There), None) => {}
            (Ok(Reader::There), Some(report)) => return Ok(Some(report)),
            (shown, finished) => {
                if finished.is_none() {
                    engine.cancel(id)?;
                }
                return shown.map(|_| None);
            }
        }
    }
}

fn without_draft(report: &Report) -> Failure {
    let reason = report
        .draft_inactive_reason
        .as_deref()
        .unwrap_or("it was never used");
    let message = format!("require-draft: the draft was not in use at the end ({reason})");
    Failure::work(
        "E-DRAFT-INACTIVE",
        message,
        "leave out `--require-draft` to accept plain decoding",
    )
}
