//! The engine: requests run step by step on one thread.

use std::fmt::Debug;

use super::report::{Event, Report};
use super::request::Request;
use super::target::Probe;
use crate::Result;
use crate::load::LoadReport;

/// Names a running request of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// Where a request stands after a step.
#[derive(Debug)]
pub enum Step {
    /// More to do.
    Running,
    /// Done; the id is no longer known.
    Finished(Box<Report>),
}

/// A loaded target, maybe with a draft, without any tensor in its API.
///
/// Each step is one prompt chunk or one round, so a caller can interleave requests and cancel between
/// any two steps. An error ends the request that it happened in and leaves the engine usable.
pub trait Engine: Debug {
    /// What was loaded, and why so.
    fn report(&self) -> &LoadReport;

    /// Checks a request and queues it; nothing runs yet.
    ///
    /// # Errors
    /// [`Error::Request`](crate::Error::Request) for a field that cannot be honoured.
    fn start(&mut self, request: Request) -> Result<RequestId>;

    /// Runs one prompt chunk or one round.
    ///
    /// # Errors
    /// Whatever the models report; the request is over then and its caches are freed.
    fn step(&mut self, id: RequestId, sink: &mut dyn FnMut(Event)) -> Result<Step>;

    /// Ends a request early. The report holds the text so far, with finish reason `cancelled`.
    ///
    /// # Errors
    /// If the id is not running.
    fn cancel(&mut self, id: RequestId) -> Result<Report>;

    /// Runs ids from an empty state, apart from all requests, and reads back what every layer of the target puts out.
    ///
    /// # Errors
    /// Ids outside the vocabulary, a first row past the last, or the model's; [`Error::Unsupported`](crate::Error::Unsupported) by default.
    fn probe(&mut self, _ids: &[u32], _logits_from: usize) -> Result<Probe> {
        Err(crate::Error::unsupported("layer outputs of this engine"))
    }

    /// Reads results back from the device how often? Counted since loading, for tests of "one read-back per round".
    fn readbacks(&self) -> u64;
}

/// A request as an iterator over its events; the last item is [`Output::Done`].
pub struct Generation<'e> {
    engine: &'e mut dyn Engine,
    id: Option<RequestId>,
    queue: std::collections::VecDeque<Output>,
}

/// An item of [`Generation`].
#[derive(Debug)]
pub enum Output {
    /// Something happened.
    Event(Event),
    /// The request is over.
    Done(Box<Report>),
}

impl Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Starts a request and returns its events as an iterator. Dropping it cancels the request.
///
/// # Errors
/// As [`Engine::start`].
pub fn stream_generate(engine: &mut dyn Engine, request: Request) -> Result<Generation<'_>> {
    let id = Some(engine.start(request)?);
    Ok(Generation {
        engine,
        id,
        queue: std::collections::VecDeque::new(),
    })
}

impl Iterator for Generation<'_> {
    type Item = Result<Output>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(output) = self.queue.pop_front() {
                return Some(Ok(output));
            }
            let id = self.id?;
            let queue = &mut self.queue;
            match self
                .engine
                .step(id, &mut |event| queue.push_back(Output::Event(event)))
            {
                Ok(Step::Running) => {}
                Ok(Step::Finished(report)) => {
                    self.id = None;
                    self.queue.push_back(Output::Done(report));
                }
                Err(error) => {
                    self.id = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // The id is running, so this only frees its caches.
            let _ = self.engine.cancel(id);
        }
    }
}
