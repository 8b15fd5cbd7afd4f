//! The engine on its own thread: turns, slow readers, cancelling, endings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dflash::{
    BackendChoice, Engine, EngineHandle, Error, Event, FinishReason, LoadOptions, LoadReport,
    Loaded, ModelSource, Output, Report, Request, RequestId, Result, Step, Stream, demo, load,
    stream_generate,
};

fn options() -> LoadOptions {
    let mut options = LoadOptions::new(ModelSource::Embedded(&demo::TARGET));
    options.draft = Some(ModelSource::Embedded(&demo::D2));
    options.backend = BackendChoice::Named("reference".into());
    options
}

/// A question of the demonstration model's kind, as ids.
fn request(max_tokens: usize, first: u32) -> Request {
    let prompt = vec![1, 286, 202, first, 265, 637, 639, 418, 2, 202, 1, 285, 202];
    Request {
        prompt,
        max_tokens,
        ..Request::default()
    }
}

/// What an engine of its own makes of a request.
fn alone(request: Request) -> Report {
    let mut loaded = load(&options()).expect("the demonstration pair");
    let outputs = stream_generate(loaded.engine.as_mut(), request).expect("a good request");
    report(outputs).expect("a report")
}

fn report(outputs: impl Iterator<Item = Result<Output>>) -> Result<Report> {
    let mut text = String::new();
    for output in outputs {
        match output? {
            Output::Event(Event::Tokens { text: piece, .. }) => text.push_str(&piece),
            Output::Event(_) => {}
            Output::Done(report) => {
                assert!(report.finish_reason == FinishReason::Cancelled || report.text == text);
                return Ok(*report);
            }
        }
    }
    panic!("a stream ends with a report or an error");
}

/// What happened to an engine.
#[derive(Debug, Default)]
struct Log {
    steps: Mutex<Vec<RequestId>>,
    cancelled: Mutex<Vec<RequestId>>,
    dropped: AtomicBool,
}

/// An engine that writes down what it is asked.
#[derive(Debug)]
struct Logged {
    engine: Box<dyn Engine>,
    log: Arc<Log>,
    panics: bool,
}

impl Engine for Logged {
    fn report(&self) -> &LoadReport {
        self.engine.report()
    }

    fn start(&mut self, request: Request) -> Result<RequestId> {
        self.engine.start(request)
    }

    fn step(&mut self, id: RequestId, sink: &mut dyn FnMut(Event)) -> Result<Step> {
        assert!(!self.panics, "an engine with a fault");
        self.log.steps.lock().expect("the log").push(id);
        self.engine.step(id, sink)
    }

    fn cancel(&mut self, id: RequestId) -> Result<Report> {
        self.log.cancelled.lock().expect("the log").push(id);
        self.engine.cancel(id)
    }

    fn readbacks(&self) -> u64 {
        self.engine.readbacks()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.log.dropped.store(true, Ordering::SeqCst);
    }
}

fn logged(panics: bool) -> (EngineHandle, Arc<Log>) {
    let log = Arc::new(Log::default());
    let inner = Arc::clone(&log);
    let loader = move || {
        let loaded = load(&options())?;
        let engine = Logged {
            engine: loaded.engine,
            log: inner,
            panics,
        };
        Ok(Loaded {
            engine: Box::new(engine),
            ..loaded
        })
    };
    (
        EngineHandle::spawn(loader).expect("the demonstration pair"),
        log,
    )
}

/// Reads until the first tokens have come.
fn wait_for_tokens(stream: &mut Stream) {
    let tokens = |output: Result<Output>| {
        matches!(
            output.expect("no error"),
            Output::Event(Event::Tokens { .. })
        )
    };
    assert!(stream.any(tokens));
}

#[test]
fn two_requests_take_turns_and_equal_separate_runs() {
    let (handle, log) = logged(false);
    let requests = [request(60, 433), request(60, 86)];
    let reports = std::thread::scope(|scope| {
        // Both are queued before either is read, so both run from the start.
        let streams = requests.clone().map(|r| handle.generate(r));
        let readers = streams.map(|stream| scope.spawn(move || report(stream).expect("a report")));
        readers.map(|reader| reader.join().expect("no panic"))
    });
    for (found, request) in reports.iter().zip(requests) {
        let expected = alone(request);
        assert_eq!(
            (&found.tokens, &found.text),
            (&expected.tokens, &expected.text)
        );
        assert_eq!(found.acceptance_lengths, expected.acceptance_lengths);
        assert!(found.drafted > 0);
    }
    let steps = log.steps.lock().expect("the log");
    let (first, second) = (
        steps[0],
        *steps
            .iter()
            .find(|id| **id != steps[0])
            .expect("a second request"),
    );
    let start = steps
        .iter()
        .position(|id| *id == second)
        .expect("its first step");
    let end =
        [first, second].map(|id| steps.iter().rposition(|s| *s == id).expect("its last step"));
    let shared = &steps[start..=end[0].min(end[1])];
    assert!(shared.len() > 6, "{steps:?}");
    assert!(
        shared.windows(2).all(|pair| pair[0] != pair[1]),
        "{steps:?}"
    );
}

#[test]
fn a_reader_that_lags_delays_nobody() {
    let (handle, _) = logged(false);
    let slow_request = Request {
        draft: false,
        ..request(300, 433)
    };
    let slow = handle.generate(slow_request.clone());
    let quick = report(handle.generate(request(20, 86))).expect("a report");
    assert_eq!(quick.tokens, alone(request(20, 86)).tokens);
    let slow = report(slow).expect("a report");
    assert_eq!(slow.tokens, alone(slow_request).tokens);
}

#[test]
fn a_dropped_receiver_cancels() {
    let (handle, log) = logged(false);
    let mut stream = handle.generate(Request {
        draft: false,
        ..request(4000, 433)
    });
    wait_for_tokens(&mut stream);
    drop(stream);
    let next = report(handle.generate(request(20, 86))).expect("a report");
    assert_eq!(next.tokens, alone(request(20, 86)).tokens);
    let cancelled = log.cancelled.lock().expect("the log").clone();
    assert_eq!(cancelled.len(), 1);
    let steps = log
        .steps
        .lock()
        .expect("the log")
        .iter()
        .filter(|id| **id == cancelled[0])
        .count();
    assert!(steps < 1000, "{steps} steps");
}

#[test]
fn a_cancelled_request_reports_what_there_is() {
    let handle = EngineHandle::load(options()).expect("the demonstration pair");
    let mut stream = handle.generate(Request {
        draft: false,
        ..request(4000, 433)
    });
    wait_for_tokens(&mut stream);
    stream.cancel();
    let report = report(&mut stream).expect("a report");
    assert_eq!(report.finish_reason, FinishReason::Cancelled);
    assert!((1..4000).contains(&report.generation_tokens()));
    assert!(stream.next().is_none());
}

#[test]
fn a_bad_request_is_an_error_and_nothing_else() {
    let handle = EngineHandle::load(options()).expect("the demonstration pair");
    let mut stream = handle.generate(request(0, 433));
    assert!(matches!(
        stream.next(),
        Some(Err(Error::Request {
            what: "max-tokens",
            ..
        }))
    ));
    assert!(stream.next().is_none());
    assert!(report(handle.generate(request(5, 433))).is_ok());
}

#[test]
fn the_thread_ends_with_the_last_user() {
    let (handle, log) = logged(false);
    let stream = handle.clone().generate(request(12, 433));
    drop(handle);
    assert_eq!(
        report(stream)
            .expect("a stream keeps its engine")
            .generation_tokens(),
        12
    );
    assert!(
        log.dropped.load(Ordering::SeqCst),
        "the thread was not joined"
    );
}

#[test]
fn an_engine_that_panics_ends_its_streams_with_an_error() {
    let (handle, _) = logged(true);
    assert!(report(handle.generate(request(5, 433))).is_err_and(|e| e.code() == "E-UNAVAILABLE"));
    assert!(report(handle.generate(request(5, 433))).is_err());
}

#[test]
fn handles_go_anywhere_and_know_what_they_run() {
    fn anywhere<T: Send + Sync + Clone + 'static>(_: &T) {}
    let handle = EngineHandle::load(options()).expect("the demonstration pair");
    anywhere(&handle);
    let info = handle.info();
    assert_eq!(
        (
            info.report.backend,
            info.report.draft.as_ref().map(|d| d.kind)
        ),
        ("reference", Some("dflash2"))
    );
    assert!(info.tokenizer.is_some());
    assert_eq!(info.generation.eos_token_ids, [2, 0]);
    let missing = LoadOptions::new(ModelSource::Folder("no/such/folder".into()));
    assert!(EngineHandle::load(missing).is_err_and(|e| e.is_usage()));
}
