//! The real binary, and what the demonstration model is known to say.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::Value;

/// The command, reading no settings of whoever runs the tests.
pub(crate) fn dflash() -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("dflash");
    command.env("DFLASH_SETTINGS", "none").env("NO_COLOR", "1");
    command
}

/// A run that ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command to its end.
pub(crate) fn run(args: &[&str]) -> Ran {
    ended(dflash().args(args))
}

pub(crate) fn ended(command: &mut Command) -> Ran {
    let output = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// Runs `generate --json` and reads the object.
pub(crate) fn generate(args: &[&str]) -> Value {
    let ran = run(&[&["generate", "--json"], args].concat());
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("one JSON object")
}

/// Recorded conversations of the demonstration model that one call of `generate` can ask.
pub(crate) struct Case {
    pub(crate) system: Option<String>,
    pub(crate) prompt: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
}

impl Case {
    /// The arguments that ask it.
    pub(crate) fn args(&self) -> Vec<&str> {
        let system = self.system.iter().flat_map(|s| ["--system", s.as_str()]);
        std::iter::once(self.prompt.as_str())
            .chain(system)
            .collect()
    }

    /// The prompt as an argument of `--prompt-ids`.
    pub(crate) fn id_list(&self) -> String {
        self.ids
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let path = core_tests().join("nano/expected.json");
    let recorded: Value =
        serde_json::from_slice(&std::fs::read(path).expect("expected.json")).expect("JSON");
    let ids = |value: &Value| {
        value
            .as_array()
            .expect("a list")
            .iter()
            .map(|id| id.as_u64().expect("an id") as u32)
            .collect()
    };
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let case = |case: &Value| {
        let messages = case["messages"].as_array().expect("messages");
        let system = (messages[0]["role"] == "system").then(|| text(&messages[0]["content"]));
        let [question] = &messages[usize::from(system.is_some())..] else {
            return None;
        };
        let prompt = text(&question["content"]);
        Some(Case {
            system,
            prompt,
            ids: ids(&case["prompt_ids"]),
            tokens: ids(&case["tokens"]),
            text: text(&case["text"]),
        })
    };
    let cases: Vec<_> = recorded["cases"]
        .as_array()
        .expect("cases")
        .iter()
        .filter_map(case)
        .collect();
    assert!(
        cases.len() > 20 && cases.iter().any(|c| c.system.is_some()),
        "{} cases",
        cases.len()
    );
    cases
}

/// The case whose prompt contains a word.
pub(crate) fn case(word: &str) -> Case {
    cases()
        .into_iter()
        .find(|c| c.prompt.contains(word))
        .expect("such a case")
}

/// The test data of the core crate.
pub(crate) fn core_tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../dflash-core/tests")
}

/// A folder of the golden data, as an argument.
pub(crate) fn golden(folder: &str) -> String {
    core_tests()
        .join("golden")
        .join(folder)
        .display()
        .to_string()
}
