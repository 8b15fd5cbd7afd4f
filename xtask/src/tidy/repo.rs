//! Rules that tie files to each other.

use super::{Files, Finding};

/// The test command of the README, which `.ci/run` runs as it stands there.
const TEST_COMMAND: &str = "cargo xtask test";
const GATE: &str = ".ci/run";

/// A file and a phrase of the licence that it holds.
const LICENCES: &[(&str, &str)] = &[
    (
        "LICENSE-MIT",
        "Permission is hereby granted, free of charge",
    ),
    (
        "LICENSE-APACHE",
        "Apache License\n                           Version 2.0, January 2004",
    ),
];

/// The embedded models, and the test models that they are.
const DEMO: &str = "dflash-cli/demo/";
const TEST_MODELS: &str = "dflash-core/tests/nano/";

/// Checks licences, the gate, the README's command and the embedded models.
pub(super) fn check(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, phrase) in LICENCES {
        match text(files, path) {
            None => findings.push(Finding::new(path, 0, "is missing")),
            Some(text) if !text.contains(phrase) => {
                findings.push(Finding::new(
                    path,
                    0,
                    "does not hold the text of its licence",
                ));
            }
            Some(_) => {}
        }
    }
    let runs = |path: &str| {
        text(files, path).is_some_and(|text| text.lines().any(|line| line.trim() == TEST_COMMAND))
    };
    if !runs(GATE) {
        findings.push(Finding::new(
            GATE,
            0,
            format!("does not run the README's `{TEST_COMMAND}`"),
        ));
    }
    if files.contains_key("README.md") && !runs("README.md") {
        findings.push(Finding::new(
            "README.md",
            0,
            format!("does not show the test command `{TEST_COMMAND}` on a line of its own"),
        ));
    }
    for (path, content) in files {
        // Each folder has its own words about the models.
        let Some(name) = path
            .strip_prefix(DEMO)
            .filter(|name| !name.ends_with(".md"))
        else {
            continue;
        };
        if files.get(&format!("{TEST_MODELS}{name}")) != Some(content) {
            findings.push(Finding::new(
                path,
                0,
                format!("differs from {TEST_MODELS}{name}"),
            ));
        }
    }
    findings
}

fn text<'a>(files: &'a Files, path: &str) -> Option<&'a str> {
    files
        .get(path)
        .and_then(|content| std::str::from_utf8(content).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Files {
        let list = [
            ("LICENSE-MIT", include_str!("../../../LICENSE-MIT")),
            ("LICENSE-APACHE", include_str!("../../../LICENSE-APACHE")),
            (GATE, include_str!("../../../.ci/run")),
            ("README.md", "```sh\ncargo xtask test\n```\n"),
            ("dflash-cli/demo/d1/config.json", "{}"),
            ("dflash-cli/demo/README.md", "The embedded models.\n"),
            ("dflash-core/tests/nano/d1/config.json", "{}"),
        ];
        list.into_iter()
            .map(|(path, content)| (path.to_owned(), content.as_bytes().to_vec()))
            .collect()
    }

    fn after(change: impl FnOnce(&mut Files)) -> Vec<String> {
        let mut files = good();
        change(&mut files);
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_repository_passes() {
        assert_eq!(after(|_| {}), [""; 0]);
        assert_eq!(after(|files| drop(files.remove("README.md"))), [""; 0]);
    }

    #[test]
    fn licences_are_there() {
        assert_eq!(
            after(|files| drop(files.remove("LICENSE-MIT"))),
            ["LICENSE-MIT: is missing"]
        );
        let found = after(|files| drop(files.insert("LICENSE-APACHE".to_owned(), b"MIT".to_vec())));
        assert_eq!(
            found,
            ["LICENSE-APACHE: does not hold the text of its licence"]
        );
    }

    #[test]
    fn the_gate_runs_what_the_readme_shows() {
        assert_eq!(
            after(|files| drop(files.insert(GATE.to_owned(), b"cargo test\n".to_vec()))).len(),
            1
        );
        assert_eq!(
            after(|files| drop(files.insert("README.md".to_owned(), b"cargo test\n".to_vec())))
                .len(),
            1
        );
    }

    #[test]
    fn the_embedded_models_are_the_tested_ones() {
        let demo = "dflash-cli/demo/d1/config.json";
        let found = after(|files| drop(files.insert(demo.to_owned(), b"{ }".to_vec())));
        assert_eq!(
            found,
            ["dflash-cli/demo/d1/config.json: differs from dflash-core/tests/nano/d1/config.json"]
        );
        assert_eq!(
            after(|files| drop(files.remove("dflash-core/tests/nano/d1/config.json"))).len(),
            1
        );
    }
}
