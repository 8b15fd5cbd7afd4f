//! Ctrl-C, and a reader that goes away.

#![cfg(unix)]
mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A generation that takes minutes.
fn long(options: &[&str]) -> Child {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("dflash"));
    command.args([
        "generate",
        "Show me the 3 times table up to 9.",
        "--ignore-eos",
        "--max-tokens",
        "4000",
        "--draft",
        "none",
    ]);
    command
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(sent.success());
}

/// Everything that is left of a stream.
fn rest(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("UTF-8");
    text
}

#[test]
fn ctrl_c_ends_well_with_the_text_so_far() {
    let mut child = long(&[]);
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    out.read_line(&mut first).expect("a line of text, live");
    interrupt(&child);
    let (more, err) = (rest(out), rest(child.stderr.take().expect("piped")));
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{err}");
    assert!(first.contains("multiplication table"), "{first}");
    assert!(
        more.ends_with('\n') && first.len() + more.len() < 12_000,
        "{} bytes",
        more.len()
    );
    assert!(
        err.lines().last().is_some_and(|l| l.ends_with("cancelled")),
        "{err}"
    );
}

#[test]
fn ctrl_c_with_json_reports_what_there_is() {
    // The trace shows that it runs; with `--json` standard output is silent until the end.
    let mut child = long(&["--json", "-vv"]);
    let mut err = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.starts_with("round 3") {
        line.clear();
        assert_ne!(
            err.read_line(&mut line).expect("a line"),
            0,
            "it ended before the third round"
        );
    }
    interrupt(&child);
    let err = rest(err);
    let object: Value =
        serde_json::from_str(&rest(child.stdout.take().expect("piped"))).expect("one JSON object");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{err}");
    assert_eq!(object["finish_reason"], "cancelled");
    let tokens = object["generation_tokens"].as_u64().expect("a number");
    assert!((4..4000).contains(&tokens), "{tokens}");
    assert!(object["text"].as_str().is_some_and(|t| !t.is_empty()));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = long(&[]);
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut String::new()).expect("a line of text");
    drop(out);
    let err = rest(child.stderr.take().expect("piped"));
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{err}");
    assert!(!err.contains("error") && !err.contains("panicked"), "{err}");
}
