//! An engine on a thread of its own, for callers on any thread.
//!
//! Engines hold tensors that must not change threads, so the model is loaded on the thread that
//! runs it. Requests go there through a channel; each request's events come back through a bounded
//! one. Running requests take turns, one step each. A request whose receiver lags is passed over
//! until there is room, so a slow reader delays nobody but itself.

mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use dflash_core::config::GenerationConfig;
use dflash_core::load::{LoadReport, Loaded};
use dflash_core::spec::{Output, Request};
use dflash_core::text::Tokenizer;
use dflash_core::{Error, Result};

use crate::load::{LoadOptions, load};
use worker::{Command, Worker};

/// Events that a request may be ahead of its receiver.
const AHEAD: usize = 64;

/// A loaded engine that any thread can use. Clones share it; the last one to go ends its thread.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

/// What was loaded.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// The engine, with the reasons for every choice.
    pub report: LoadReport,
    /// Encodes prompts; `None` if the target came without a tokenizer.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The model's own generation defaults.
    pub generation: GenerationConfig,
}

struct Shared {
    info: EngineInfo,
    tickets: AtomicU64,
    /// Taken before the thread is joined: it ends when nobody can send any more.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// Starts the model thread, and loads there as [`load`] does.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(options: LoadOptions) -> Result<Self> {
        Self::spawn(move || load(&options))
    }

    /// Starts the model thread, and loads there with `loader`: for a backend that is not built in.
    ///
    /// # Errors
    /// Those of `loader`, or [`Error::Unavailable`] if the thread cannot be started.
    pub fn spawn(loader: impl FnOnce() -> Result<Loaded> + Send + 'static) -> Result<Self> {
        let (commands, inbox) = channel();
        let (ready, loaded) = channel();
        let main = move || {
            let Loaded {
                engine,
                tokenizer,
                generation,
                ..
            } = match loader() {
                Ok(loaded) => loaded,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let info = EngineInfo {
                report: engine.report().clone(),
                tokenizer,
                generation,
            };
            if ready.send(Ok(info)).is_ok() {
                drop(ready);
                Worker::new(engine).run(&inbox);
            }
        };
        let unavailable = |reason: String| Error::Unavailable {
            what: "the model thread".into(),
            reason,
            hint: None,
        };
        let thread = std::thread::Builder::new()
            .name("dflash-model".into())
            .spawn(main)
            .map_err(|e| unavailable(e.to_string()))?;
        let info = loaded
            .recv()
            .map_err(|_| unavailable("it ended while loading".into()))??;
        let shared = Shared {
            info,
            tickets: AtomicU64::new(0),
            commands: Some(commands),
            thread: Some(thread),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// Queues a request. What is wrong with it comes as the iterator's first item.
    pub fn generate(&self, request: Request) -> Stream {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        let (sink, outputs) = sync_channel(AHEAD);
        self.shared.send(Command::Start {
            ticket,
            request: Box::new(request),
            sink,
        });
        Stream {
            shared: Arc::clone(&self.shared),
            ticket,
            outputs,
            over: false,
        }
    }
}

impl Shared {
    /// A thread that is gone shows in the streams, so nothing is reported here.
    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the model thread has ended its streams with an error already.
            let _ = thread.join();
        }
    }
}

/// The events of one request; the last item is [`Output::Done`] or an error. Dropping it cancels the request.
#[derive(Debug)]
pub struct Stream {
    shared: Arc<Shared>,
    ticket: u64,
    outputs: Receiver<Result<Output>>,
    over: bool,
}

impl Stream {
    /// Ends the request within a round; its report comes through the iterator, with finish reason `cancelled`.
    pub fn cancel(&self) {
        self.shared.send(Command::Cancel {
            ticket: self.ticket,
        });
    }
}

impl Iterator for Stream {
    type Item = Result<Output>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let output = self.outputs.recv().unwrap_or_else(|_| {
            let reason = "its thread ended unexpectedly".into();
            Err(Error::Unavailable {
                what: "the engine".into(),
                reason,
                hint: None,
            })
        });
        // There is room now, which the worker may be waiting for.
        self.shared.send(Command::Room);
        self.over = matches!(output, Ok(Output::Done(_)) | Err(_));
        Some(output)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.over {
            self.shared.send(Command::Drop {
                ticket: self.ticket,
            });
        }
    }
}
