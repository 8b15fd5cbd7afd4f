//! The model thread's loop.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};

use dflash_core::Result;
use dflash_core::spec::{Engine, Output, Request, RequestId, Step};

/// What other threads ask of the model thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Run a request.
    Start {
        ticket: u64,
        request: Box<Request>,
        sink: SyncSender<Result<Output>>,
    },
    /// End a request, with a report.
    Cancel { ticket: u64 },
    /// End a request; nobody listens.
    Drop { ticket: u64 },
    /// A receiver has taken something.
    Room,
}

/// The engine with its running requests.
#[derive(Debug)]
pub(super) struct Worker {
    engine: Box<dyn Engine>,
    running: Vec<Running>,
}

/// A request whose receiver has not had everything yet.
#[derive(Debug)]
struct Running {
    ticket: u64,
    /// `None` once the engine has finished it.
    id: Option<RequestId>,
    sink: SyncSender<Result<Output>>,
    outbox: VecDeque<Result<Output>>,
}

/// What became of a request's turn.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// It did something.
    Moved,
    /// Its receiver has no room.
    Waits,
    /// It is over.
    Over,
}

impl Worker {
    pub(super) fn new(engine: Box<dyn Engine>) -> Self {
        Self {
            engine,
            running: Vec::new(),
        }
    }

    /// Runs until nobody can send commands any more.
    pub(super) fn run(mut self, inbox: &Receiver<Command>) {
        let mut idle = true;
        loop {
            if idle {
                let Ok(command) = inbox.recv() else { return };
                self.obey(command);
            }
            loop {
                match inbox.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            idle = !self.round();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start {
                ticket,
                request,
                sink,
            } => {
                let mut running = Running {
                    ticket,
                    id: None,
                    sink,
                    outbox: VecDeque::new(),
                };
                match self.engine.start(*request) {
                    Ok(id) => running.id = Some(id),
                    Err(error) => running.outbox.push_back(Err(error)),
                }
                self.running.push(running);
            }
            Command::Cancel { ticket } => {
                if let Some(running) = self.running.iter_mut().find(|r| r.ticket == ticket)
                    && let Some(id) = running.id.take()
                {
                    running.outbox.push_back(
                        self.engine
                            .cancel(id)
                            .map(|report| Output::Done(Box::new(report))),
                    );
                }
            }
            Command::Drop { ticket } => {
                if let Some(at) = self.running.iter().position(|r| r.ticket == ticket)
                    && let Some(id) = self.running.remove(at).id
                {
                    // Nobody is left to be told.
                    let _ = self.engine.cancel(id);
                }
            }
            Command::Room => {}
        }
    }

    /// Gives every request one step. False if none could move, so that only a command can change that.
    fn round(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(running) = self.running.get_mut(at) {
            let turn = running.turn(self.engine.as_mut());
            moved |= turn != Turn::Waits;
            if turn == Turn::Over {
                self.running.remove(at);
            } else {
                at += 1;
            }
        }
        moved
    }
}

impl Running {
    fn turn(&mut self, engine: &mut dyn Engine) -> Turn {
        match self.deliver(engine) {
            Turn::Moved => {}
            other => return other,
        }
        let Some(id) = self.id else { return Turn::Over };
        let outbox = &mut self.outbox;
        match engine.step(id, &mut |event| outbox.push_back(Ok(Output::Event(event)))) {
            Ok(Step::Running) => {}
            Ok(Step::Finished(report)) => {
                self.id = None;
                self.outbox.push_back(Ok(Output::Done(report)));
            }
            Err(error) => {
                self.id = None;
                self.outbox.push_back(Err(error));
            }
        }
        match self.deliver(engine) {
            Turn::Over => Turn::Over,
            _ => Turn::Moved,
        }
    }

    /// Hands out what has collected. `Moved`: nothing is left, and more will come.
    fn deliver(&mut self, engine: &mut dyn Engine) -> Turn {
        while let Some(output) = self.outbox.pop_front() {
            match self.sink.try_send(output) {
                Ok(()) => {}
                Err(TrySendError::Full(output)) => {
                    self.outbox.push_front(output);
                    return Turn::Waits;
                }
                Err(TrySendError::Disconnected(_)) => {
                    if let Some(id) = self.id.take() {
                        // The request was running and nobody listens, so this only frees its caches.
                        let _ = engine.cancel(id);
                    }
                    return Turn::Over;
                }
            }
        }
        if self.id.is_some() {
            Turn::Moved
        } else {
            Turn::Over
        }
    }
}
