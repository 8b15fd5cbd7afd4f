//! The engine over any target and draft.

use std::collections::BTreeMap;
use std::time::Instant;

use super::drafter::DraftModel;
use super::engine::{Engine, RequestId, Step};
use super::policy::Policy;
use super::report::{Event, FinishReason, Report, Round};
use super::request::{Bounds, Request};
use super::round;
use super::sampler::{Occurred, RowRule};
use super::sequence::{Sequence, Stats};
use super::target::{Probe, Rows, TargetModel};
use super::text::{Output, TextDecoder};
use crate::load::LoadReport;
use crate::{Error, Result};

/// What an engine is made of.
#[derive(Debug)]
pub struct EngineParts<T, D> {
    /// The target.
    pub target: T,
    /// The draft, bound to it.
    pub draft: Option<D>,
    /// Turns ids into text.
    pub decoder: Option<Box<dyn TextDecoder>>,
    /// What was loaded.
    pub report: LoadReport,
    /// Counts the target's and the draft's read-backs.
    pub readbacks: fn(&T) -> u64,
}

/// Runs requests on a target and maybe a draft.
#[derive(Debug)]
pub struct SpecEngine<T: TargetModel, D: DraftModel<T>> {
    parts: EngineParts<T, D>,
    running: BTreeMap<RequestId, Running<T, D>>,
    next: u64,
}

/// A request and how far its prompt was processed.
#[derive(Debug)]
struct Running<T: TargetModel, D: DraftModel<T>> {
    sequence: Sequence<T, D>,
    /// `None` after the prompt.
    prefill: Option<Prefill>,
}

#[derive(Debug)]
struct Prefill {
    done: usize,
    chunk: usize,
}

impl<T: TargetModel, D: DraftModel<T>> SpecEngine<T, D> {
    /// An engine with no requests.
    pub fn new(parts: EngineParts<T, D>) -> Self {
        Self {
            parts,
            running: BTreeMap::new(),
            next: 0,
        }
    }

    /// The target.
    pub fn target(&self) -> &T {
        &self.parts.target
    }

    /// The draft.
    pub fn draft(&self) -> Option<&D> {
        self.parts.draft.as_ref()
    }

    /// The caches of a running request, for tests that compare them with plain decoding's.
    pub fn target_state(&self, id: RequestId) -> Option<&T::State> {
        self.running.get(&id).map(|r| &r.sequence.target)
    }

    /// The draft context of a running request.
    pub fn draft_state(&self, id: RequestId) -> Option<&D::State> {
        self.running
            .get(&id)
            .and_then(|r| r.sequence.draft.as_ref())
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            vocab_size: self.parts.report.vocab_size,
            context: self.parts.report.context,
            trained_block: self.parts.draft.as_ref().map(D::block_size),
            has_text: self.parts.decoder.is_some(),
        }
    }

    /// Runs a chunk of the prompt; after the last one, draws the first token.
    fn step_prompt(
        &mut self,
        running: &mut Running<T, D>,
        sink: &mut dyn FnMut(Event),
    ) -> Result<Option<FinishReason>> {
        let Some(prefill) = &mut running.prefill else {
            return Ok(None);
        };
        let seq = &mut running.sequence;
        let total = seq.prompt.len();
        let end = (prefill.done + prefill.chunk).min(total);
        let chunk = &seq.prompt[prefill.done..end];
        prefill.done = end;
        let mut notes = Round::default();
        let finish = if end < total {
            let rows = self.parts.target.prefill(&mut seq.target, chunk)?;
            seq.position = end;
            seq.absorb(self.parts.draft.as_ref(), rows, total, &mut notes);
            None
        } else {
            let rule = RowRule {
                sampling: seq.sampling,
                position: total,
                occurred: &seq.occurred,
            };
            let close = rule.score_rounding(seq.row_rounding);
            let (rows, mut last) = self.parts.target.prefill_last(&mut seq.target, chunk)?;
            let verdict = last.choose(&rule)?;
            drop(last);
            seq.position = end;
            seq.absorb(self.parts.draft.as_ref(), rows, total, &mut notes);
            seq.stats.first_token = Some(Instant::now());
            running.prefill = None;
            let first = verdict
                .rows
                .first()
                .expect("invariant: a row chooses a token");
            round::first(seq, *first, close)
        };
        self.parts.target.settle(&mut running.sequence.target)?;
        running.sequence.stats.notes.append(&mut notes.notes);
        sink(Event::Prefill { done: end, total });
        Ok(finish)
    }

    fn step_round(
        &mut self,
        seq: &mut Sequence<T, D>,
        sink: &mut dyn FnMut(Event),
    ) -> Result<Option<FinishReason>> {
        let round = round::run(&self.parts.target, self.parts.draft.as_ref(), seq)?;
        seq.stats.count(&round);
        sink(Event::Round(round));
        Ok(seq.finish)
    }
}

impl<T: TargetModel + std::fmt::Debug, D: DraftModel<T> + std::fmt::Debug> Engine
    for SpecEngine<T, D>
{
    fn report(&self) -> &LoadReport {
        &self.parts.report
    }

    fn start(&mut self, request: Request) -> Result<RequestId> {
        let bounds = self.bounds();
        request.check(&bounds)?;
        let trained = bounds.trained_block.filter(|_| request.draft);
        let block = trained.map_or(1, |trained| request.block_size.unwrap_or(trained));
        let inactive = match bounds.trained_block {
            None => Some("no draft is loaded".to_owned()),
            Some(_) if !request.draft => Some("the request asked for plain decoding".to_owned()),
            Some(_) if block == 1 => Some("the block size is 1".to_owned()),
            Some(_) => None,
        };
        let draft = match &self.parts.draft {
            Some(draft) if inactive.is_none() => Some(draft.new_state()?),
            _ => None,
        };
        let stream = self
            .parts
            .decoder
            .as_ref()
            .map(|d| d.stream(request.show_special));
        let limit = request.token_limit(&bounds);
        let mut occurred = Occurred::default();
        request.prompt.iter().for_each(|id| occurred.insert(*id));
        let sequence = Sequence {
            target: self.parts.target.new_state()?,
            draft,
            position: 0,
            anchor: 0,
            sampling: request.sampling,
            row_rounding: self.parts.report.row_rounding.unwrap_or(0.0),
            occurred,
            output: Output::new(stream, request.stop, request.end_ids, limit)?,
            policy: Policy::new(block, inactive),
            finish: None,
            stats: Stats::new(self.parts.draft.is_some() && request.draft, Vec::new()),
            prompt: request.prompt,
        };
        let id = RequestId(self.next);
        self.next += 1;
        self.running.insert(
            id,
            Running {
                sequence,
                prefill: Some(Prefill {
                    done: 0,
                    chunk: request.prefill_chunk,
                }),
            },
        );
        Ok(id)
    }

    fn step(&mut self, id: RequestId, sink: &mut dyn FnMut(Event)) -> Result<Step> {
        // Taken out while it runs: a step that fails ends its request and frees its caches.
        let mut running = self.running.remove(&id).ok_or_else(|| unknown(id))?;
        let finish = match running.prefill {
            Some(_) => self.step_prompt(&mut running, sink)?,
            None => self.step_round(&mut running.sequence, sink)?,
        };
        if let Some(reason) = finish {
            running.sequence.output.end(reason);
        }
        let (ids, text) = running.sequence.output.news();
        if !ids.is_empty() || !text.is_empty() {
            sink(Event::Tokens { ids, text });
        }
        match finish {
            Some(reason) => Ok(Step::Finished(Box::new(running.sequence.report(
                reason,
                &self.parts.target,
                self.parts.draft.as_ref(),
            )))),
            None => {
                self.running.insert(id, running);
                Ok(Step::Running)
            }
        }
    }

    fn cancel(&mut self, id: RequestId) -> Result<Report> {
        let running = self.running.remove(&id).ok_or_else(|| unknown(id))?;
        let mut sequence = running.sequence;
        sequence.output.end(FinishReason::Cancelled);
        Ok(sequence.report(
            FinishReason::Cancelled,
            &self.parts.target,
            self.parts.draft.as_ref(),
        ))
    }

    fn probe(&mut self, ids: &[u32], logits_from: usize) -> Result<Probe> {
        self.parts.target.probe(ids, logits_from)
    }

    fn readbacks(&self) -> u64 {
        (self.parts.readbacks)(&self.parts.target)
    }
}

fn unknown(id: RequestId) -> Error {
    Error::request("request", format!("{id:?} is not running"))
}
