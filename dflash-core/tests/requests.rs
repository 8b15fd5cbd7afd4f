//! Where a text ends, what is emitted, and that requests do not touch each other.

use dflash_core::spec::{
    Engine, Event, FinishReason, Output, Report, Request, RequestId, Sampling, Step,
    stream_generate,
};
use dflash_core::testing::drive::finish;
use dflash_core::testing::scripted::{
    Letters, Logits, ScriptedDraft, ScriptedEngine, ScriptedTarget, Skill, engine,
};

const PROMPT: [u32; 4] = [9, 8, 7, 6];
const VOCAB: usize = 16;

/// A target that says this after [`PROMPT`].
fn says(text: &[u32]) -> Logits {
    Logits::Text {
        tokens: [&PROMPT[..], text].concat(),
        vocab: VOCAB,
    }
}

/// An engine for a text; `pattern` says how many slots of each block are right.
fn speaker(
    text: &[u32],
    pattern: &[usize],
    letters: Option<Letters>,
    context: usize,
) -> ScriptedEngine {
    let logits = says(text);
    let draft = ScriptedDraft::new(&logits, Skill::Pattern(pattern.to_vec()), 8);
    engine(ScriptedTarget::new(logits), Some(draft), letters, context)
}

fn request(max_tokens: usize) -> Request {
    Request {
        prompt: PROMPT.to_vec(),
        max_tokens,
        ..Request::default()
    }
}

/// The cache holds prompt and tokens but the last, which no row has seen.
fn assert_cache(engine: &ScriptedEngine, report: &Report) {
    let mut expected = [&PROMPT[..], &report.tokens].concat();
    expected.pop();
    assert_eq!(engine.target().last_cache(), expected);
    assert_eq!(engine.target().alive(), 0);
    let rounds: usize = report.acceptance_lengths.iter().sum();
    assert_eq!(rounds + 1, report.tokens.len());
    assert!(report.accepted <= report.drafted);
}

/// Patterns of right slots: the end falls into every slot of a block, and behind it.
const PATTERNS: [&[usize]; 4] = [&[7], &[0], &[3, 7, 0], &[5, 1]];

#[test]
fn exactly_as_many_tokens_as_asked_for() {
    let text: Vec<u32> = (0..40).map(|i| i % 5).collect();
    for pattern in PATTERNS {
        for max_tokens in 1..=20 {
            let mut engine = speaker(&text, pattern, None, 1000);
            let report = finish(&mut engine, &request(max_tokens)).expect("it runs");
            assert_eq!(report.tokens, text[..max_tokens], "{pattern:?}");
            assert_eq!(report.finish_reason, FinishReason::Length);
            assert_eq!(report.rounds > 0 && report.drafted > 0, max_tokens > 1);
            assert_cache(&engine, &report);
        }
    }
}

#[test]
fn the_context_limit_ends_a_text_like_a_budget() {
    let text: Vec<u32> = (0..40).map(|i| i % 5).collect();
    for pattern in PATTERNS {
        for room in 1..=20 {
            // The model's own limit, and a request's lower one.
            for (limit, asked) in [
                (PROMPT.len() + room, None),
                (500, Some(PROMPT.len() + room)),
            ] {
                let mut engine = speaker(&text, pattern, None, limit);
                let request = Request {
                    context: asked,
                    ..request(100)
                };
                let report = finish(&mut engine, &request).expect("it runs");
                assert_eq!(report.tokens, text[..room]);
                assert_eq!(report.finish_reason, FinishReason::Length);
                assert!(room == 1 || report.drafted > 0);
                assert_cache(&engine, &report);
            }
        }
    }
}

#[test]
fn nothing_follows_an_end_token_in_any_slot() {
    let ends = [14, 15];
    for pattern in PATTERNS {
        for at in 0..=20 {
            for end in ends {
                // Text goes on behind the end, and a second end follows: neither may show.
                let mut text: Vec<u32> = (0..40).map(|i| i % 5).collect();
                text[at] = end;
                text[at + 2] = ends[0];
                let mut engine = speaker(&text, pattern, None, 1000);
                let mut emitted = Vec::new();
                let request = Request {
                    end_ids: ends.to_vec(),
                    ..request(40)
                };
                let id = engine.start(request).expect("it starts");
                let report = run(&mut engine, id, &mut |event| {
                    if let Event::Tokens { ids, .. } = event {
                        emitted.extend(ids);
                    }
                });
                assert_eq!(report.tokens, text[..=at], "{pattern:?}, end at {at}");
                assert_eq!(emitted, report.tokens);
                assert_eq!(report.finish_reason, FinishReason::Stop);
                assert_eq!(report.generation_tokens(), at + 1);
                assert_eq!(report.drafted > 0, at > 0);
                assert_cache(&engine, &report);
            }
        }
    }
}

#[test]
fn an_end_token_on_the_last_token_of_the_budget_is_a_stop() {
    let text: Vec<u32> = vec![1, 2, 3, 4, 15, 1, 1, 1, 1, 1];
    let mut engine = speaker(&text, &[7], None, 1000);
    let request = Request {
        end_ids: vec![15],
        ..request(5)
    };
    let report = finish(&mut engine, &request).expect("it runs");
    assert_eq!(
        (report.tokens.as_slice(), report.finish_reason),
        (&text[..5], FinishReason::Stop)
    );
    assert!(report.drafted > 0);
}

fn run(engine: &mut ScriptedEngine, id: RequestId, sink: &mut dyn FnMut(Event)) -> Report {
    loop {
        if let Step::Finished(report) = engine.step(id, sink).expect("it runs") {
            return *report;
        }
    }
}

/// "ab", "c", "é" in two halves, a euro sign in three.
fn letters() -> Letters {
    Letters::new(&[
        b"ab", b"c", b"d", b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b" ", b"e",
    ])
}

/// Text by events, text of the report, tokens and reason.
fn spoken(text: &[u32], pattern: &[usize], stop: &[&str], max: usize) -> (Report, String) {
    let mut engine = speaker(text, pattern, Some(letters()), 1000);
    let mut streamed = String::new();
    let request = Request {
        stop: stop.iter().map(|s| (*s).to_owned()).collect(),
        ..request(max)
    };
    let id = engine.start(request).expect("it starts");
    let report = run(&mut engine, id, &mut |event| {
        if let Event::Tokens { text, .. } = event {
            streamed.push_str(&text);
        }
    });
    assert_cache(&engine, &report);
    (report, streamed)
}

#[test]
fn streamed_pieces_join_to_the_whole_text() {
    let text = [0, 3, 4, 1, 5, 6, 7, 8, 0, 3, 4, 3, 4, 5, 6, 7, 9, 2];
    let whole = "abéc€ abéé€ed";
    for pattern in PATTERNS {
        let (report, streamed) = spoken(&text, pattern, &[], text.len());
        assert_eq!(
            (report.text.as_str(), streamed.as_str()),
            (whole, whole),
            "{pattern:?}"
        );
        assert!(report.drafted > 0);
        // A budget in the middle of a character: what is there comes out, as the decoder shows it.
        let (report, streamed) = spoken(&text, pattern, &[], 6);
        assert_eq!(
            (report.text.as_str(), streamed.as_str()),
            ("abéc\u{fffd}", "abéc\u{fffd}")
        );
    }
}

#[test]
fn stop_strings_end_a_text_before_them() {
    //          ab c  d  ab c  é     e  d ...
    let text = [0, 1, 2, 0, 1, 3, 4, 9, 2, 0, 0, 0, 0, 0, 0, 0];
    let cases: [(&[&str], &str, usize); 8] = [
        // Within a token, across two, across three and at the very start.
        (&["b"], "a", 1),
        (&["bc"], "a", 2),
        (&["bcd"], "a", 3),
        (&["ab"], "", 1),
        (&["abcd"], "", 3),
        // Later, with a split character in it; and the first of two.
        (&["cé"], "abcdab", 7),
        (&["zzz", "da"], "abc", 4),
        (&["éed", "abx"], "abcdabc", 9),
    ];
    for pattern in PATTERNS {
        for (stop, shown, tokens) in cases {
            let (report, streamed) = spoken(&text, pattern, stop, 16);
            assert_eq!(report.text, shown, "{stop:?} {pattern:?}");
            assert_eq!(streamed, shown, "nothing of the stop string is streamed");
            assert_eq!(
                report.tokens,
                text[..tokens],
                "{stop:?}: the tokens it took are committed"
            );
            assert_eq!(report.finish_reason, FinishReason::StopString);
            assert_eq!(report.drafted > 0, tokens > 1);
        }
        // One that does not come: what was held back for it comes out at the end.
        let (report, streamed) = spoken(&text[..5], pattern, &["cx"], 5);
        assert_eq!(
            (report.text.as_str(), streamed.as_str()),
            ("abcdabc", "abcdabc")
        );
        assert_eq!(report.finish_reason, FinishReason::Length);
    }
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    let mut engine = speaker(&[1, 2, 3], &[7], None, 20);
    let bad = [
        Request {
            stop: vec!["x".into()],
            ..request(5)
        },
        Request {
            block_size: Some(9),
            ..request(5)
        },
        Request {
            prompt: vec![1; 20],
            ..request(5)
        },
        Request {
            prompt: vec![16],
            ..request(5)
        },
        Request {
            context: Some(21),
            ..request(5)
        },
        request(0),
    ];
    for request in bad {
        let error = engine
            .start(request.clone())
            .expect_err("it cannot be honoured");
        assert!(error.is_usage(), "{error}");
    }
    assert_eq!(engine.target().alive(), 0, "nothing was allocated for them");
    let report = finish(&mut engine, &request(3)).expect("an over-long prompt hurts nobody else");
    assert!(report.draft_active && report.drafted > 0);
}

#[test]
fn plain_requests_say_so() {
    let text: Vec<u32> = (0..40).map(|i| i % 5).collect();
    for (change, why) in [
        (
            Request {
                draft: false,
                ..request(20)
            },
            "asked for plain",
        ),
        (
            Request {
                block_size: Some(1),
                ..request(20)
            },
            "block size is 1",
        ),
    ] {
        let report = finish(&mut speaker(&text, &[7], None, 1000), &change).expect("it runs");
        assert_eq!((report.drafted, report.draft_active), (0, false));
        assert_eq!(report.tokens, text[..20]);
        assert!(
            report
                .draft_inactive_reason
                .expect("a reason")
                .contains(why)
        );
    }
}

/// Cancelled before the prompt, inside it, after it and after rounds.
#[test]
fn cancelling_at_each_stage_frees_and_reports() {
    let text: Vec<u32> = (0..40).map(|i| i % 5).collect();
    let mut engine = speaker(&text, &[2], None, 1000);
    for steps in 0..8 {
        let request = Request {
            prefill_chunk: 2,
            ..request(30)
        };
        let id = engine.start(request).expect("it starts");
        for _ in 0..steps {
            engine.step(id, &mut |_| {}).expect("it runs");
        }
        let report = engine.cancel(id).expect("it is running");
        assert_eq!(report.finish_reason, FinishReason::Cancelled);
        let expected = match steps {
            0 | 1 => 0,
            // Two chunks of prompt, then rounds of three.
            _ => 1 + 3 * (steps - 2),
        };
        assert_eq!(report.tokens, text[..expected]);
        assert_eq!(engine.target().alive(), 0);
        assert!(engine.step(id, &mut |_| {}).is_err(), "it is over");
        assert!(engine.cancel(id).is_err());
        let next = finish(&mut engine, &self::request(20)).expect("it runs");
        assert_eq!(next.tokens, text[..20]);
        assert!(next.draft_active && next.accepted > 0);
    }
}

#[test]
fn a_dropped_stream_cancels() {
    let text: Vec<u32> = (0..40).map(|i| i % 5).collect();
    let mut engine = speaker(&text, &[2], None, 1000);
    {
        let mut stream = stream_generate(&mut engine, request(30)).expect("it starts");
        let first = stream.next().expect("an item").expect("it runs");
        assert!(matches!(
            first,
            Output::Event(Event::Prefill { done: 4, total: 4 })
        ));
    }
    assert_eq!(engine.target().alive(), 0);
    let mut done = 0;
    for item in stream_generate(&mut engine, request(30)).expect("it starts") {
        if let Output::Done(report) = item.expect("it runs") {
            assert_eq!(report.tokens, text[..30]);
            assert!(report.drafted > 0);
            done += 1;
        }
    }
    assert_eq!((done, engine.target().alive()), (1, 0));
}

/// Requests of different prompts, seeds and lengths, one step at a time in turn: each as if it were alone.
#[test]
fn interleaved_requests_do_not_touch_each_other() {
    let table = Logits::Table { seed: 3, vocab: 5 };
    let make = || {
        let draft = ScriptedDraft::new(
            &table,
            Skill::Noisy {
                error: 1.0,
                seed: 1,
            },
            8,
        );
        engine(ScriptedTarget::new(table.clone()), Some(draft), None, 1000)
    };
    let requests: Vec<Request> = (0..6u32)
        .map(|i| Request {
            prompt: vec![i % 5; 1 + i as usize * 3],
            max_tokens: 10 + 7 * i as usize,
            prefill_chunk: 2,
            block_size: Some(2 + i as usize),
            sampling: Sampling {
                temperature: if i % 2 == 0 { 0.0 } else { 1.0 },
                repetition_penalty: if i == 3 { 1.4 } else { 1.0 },
                seed: u64::from(i),
                ..Sampling::default()
            },
            ..Request::default()
        })
        .collect();
    let alone: Vec<Report> = requests
        .iter()
        .map(|r| finish(&mut make(), r).expect("it runs"))
        .collect();
    let mut engine = make();
    let mut running: Vec<(usize, RequestId)> = requests
        .iter()
        .enumerate()
        .map(|(i, r)| (i, engine.start(r.clone()).expect("it starts")))
        .collect();
    let mut done = 0;
    while !running.is_empty() {
        running.retain(
            |(i, id)| match engine.step(*id, &mut |_| {}).expect("it runs") {
                Step::Running => true,
                Step::Finished(report) => {
                    assert_eq!(report.tokens, alone[*i].tokens);
                    assert_eq!(report.acceptance_lengths, alone[*i].acceptance_lengths);
                    assert!(report.accepted > 0);
                    done += 1;
                    false
                }
            },
        );
    }
    assert_eq!((done, engine.target().alive()), (6, 0));
}

#[test]
fn two_hundred_requests_leave_nothing_behind() {
    let text: Vec<u32> = (0..400).map(|i| i % 5).collect();
    let mut engine = speaker(&text, &[3, 7], None, 1000);
    let mut memory = None;
    for i in 0..200 {
        // Long, short, long again.
        let max_tokens = if i % 2 == 0 { 120 } else { 3 };
        let report = finish(&mut engine, &request(max_tokens)).expect("it runs");
        assert_eq!(report.tokens, text[..max_tokens]);
        assert!(report.drafted > 0);
        assert_eq!(engine.target().alive(), 0);
        if i % 2 == 0 {
            assert_eq!(*memory.get_or_insert(report.memory), report.memory);
        }
    }
}
