//! What a generation shows: live text or one JSON document, progress, notes and the closing line.

use dflash::{Event, FinishReason, LoadReport, Report, Request};
use indicatif::ProgressBar;

use super::json::Document;
use super::trace::Trace;
use super::verbose;
use crate::failure::Failure;
use crate::output::{Messages, Reader, Text};

/// The state of the two streams during a generation.
#[derive(Debug)]
pub(super) struct View {
    messages: Messages,
    text: Text,
    json: bool,
    verbose: u8,
    trace: Option<Trace>,
    bar: Option<ProgressBar>,
    /// Bytes of the text that were written.
    written: usize,
    rounds: usize,
    notes: Vec<String>,
}

impl View {
    pub(super) fn new(messages: Messages, json: bool, verbose: u8, trace: Option<Trace>) -> Self {
        Self {
            messages,
            text: Text::new(),
            json,
            verbose,
            trace,
            bar: None,
            written: 0,
            rounds: 0,
            notes: Vec::new(),
        }
    }

    /// Shows what was loaded and noted before the first step.
    pub(super) fn begin(&mut self, loaded: &LoadReport, request: &Request, notes: Vec<String>) {
        if self.verbose > 0 {
            verbose::loaded(self.messages, loaded, request);
        }
        for note in notes {
            self.note(note);
        }
        if request.prompt.len() > request.prefill_chunk {
            self.bar = self
                .messages
                .progress("reading the prompt", request.prompt.len());
        }
    }

    /// Shows an event.
    pub(super) fn event(&mut self, event: Event) -> Result<Reader, Failure> {
        match event {
            Event::Prefill { done, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_position(done as u64);
                }
                Ok(Reader::There)
            }
            Event::Tokens { text, .. } => {
                self.clear_bar();
                self.written += text.len();
                if self.json {
                    Ok(Reader::There)
                } else {
                    self.text.write(&text)
                }
            }
            Event::Round(round) => {
                self.rounds += 1;
                if self.verbose > 1 {
                    verbose::round(self.messages, self.rounds, &round);
                }
                self.trace
                    .as_mut()
                    .map_or(Ok(()), |trace| trace.round(&round))
                    .map(|()| Reader::There)
            }
            _ => Ok(Reader::There),
        }
    }

    /// Ends the streams with the report.
    pub(super) fn finish(&mut self, report: &Report, loaded: &LoadReport) -> Result<(), Failure> {
        if !self.json {
            // A cancelled request has text that waited for the rest of a stop string.
            if self
                .text
                .write(report.text.get(self.written..).unwrap_or_default())?
                == Reader::Gone
            {
                return self.close();
            }
        }
        self.close()?;
        let inactive = report
            .draft_inactive_reason
            .as_ref()
            .filter(|_| report.draft_requested && !report.draft_active);
        for note in report
            .notes
            .iter()
            .cloned()
            .chain(inactive.map(|reason| format!("the draft is not in use: {reason}")))
        {
            self.note(note);
        }
        if self.json {
            let document = serde_json::to_string(&Document::new(report, loaded, &self.notes))
                .map_err(|error| {
                    Failure::work(
                        "E-JSON",
                        format!("the report cannot be written as JSON: {error}"),
                        "leave out `--json`",
                    )
                })?;
            self.text.write(&document)?;
            self.text.end_line()?;
        } else {
            self.messages.line(&closing(report, loaded));
        }
        Ok(())
    }

    /// Leaves both streams in order, whatever happened.
    pub(super) fn close(&mut self) -> Result<(), Failure> {
        self.clear_bar();
        self.text.end_line()?;
        self.trace.as_mut().map_or(Ok(()), Trace::finish)
    }

    fn note(&mut self, note: String) {
        if self.notes.contains(&note) {
            return;
        }
        if !self.json {
            self.messages.note(&note);
        }
        self.notes.push(note);
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// `128 tokens · 92.1 tok/s · 4.3 tokens/round (98 of 210 drafted tokens accepted) · candle/cpu f32`
fn closing(report: &Report, loaded: &LoadReport) -> String {
    let tokens = report.generation_tokens();
    let mut parts = vec![format!(
        "{tokens} {}",
        if tokens == 1 { "token" } else { "tokens" }
    )];
    if let Some(rate) = report.generation_tps() {
        parts.push(format!("{rate:.1} tok/s"));
    }
    if let Some(per_round) = report.tokens_per_round().filter(|_| report.drafted > 0) {
        parts.push(format!(
            "{per_round:.1} tokens/round ({} of {} drafted tokens accepted)",
            report.accepted, report.drafted
        ));
    }
    parts.push(format!(
        "{}/{} {}",
        loaded.backend, loaded.device, loaded.dtype
    ));
    if report.finish_reason == FinishReason::Cancelled {
        parts.push("cancelled".into());
    }
    parts.join(" · ")
}
