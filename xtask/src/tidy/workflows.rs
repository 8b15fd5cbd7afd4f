//! Rules for the workflows of the code host: they start tasks and hold no logic of their own.

use clap::CommandFactory;

use super::{Files, Finding};

const FOLDER: &str = ".github/workflows/";
/// What a workflow may start.
const STARTS: &[&str] = &[".ci/run", "cargo xtask ", "rustup ", "gh release "];

/// Checks every workflow.
pub(super) fn check(files: &Files) -> Vec<Finding> {
    let workflows = files.iter().filter(|(path, _)| path.starts_with(FOLDER));
    let mut findings = Vec::new();
    for (path, content) in workflows {
        match std::str::from_utf8(content) {
            Ok(text) => findings.extend(check_one(path, text)),
            Err(_) => findings.push(Finding::new(path, 0, "is not UTF-8")),
        }
    }
    findings
}

fn check_one(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut report = |line, what: String| findings.push(Finding::new(path, line, what));
    let (mut jobs, mut limits) = (0, 0);
    for (number, line) in (1..).zip(text.lines()) {
        if line.contains('\t') {
            report(number, "a tab, which YAML does not indent with".to_owned());
        }
        let line = line.trim_start().trim_start_matches("- ");
        let (key, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.trim();
        match key {
            "runs-on" => jobs += 1,
            "timeout-minutes" => limits += 1,
            "uses" if !value.contains('@') => {
                report(number, format!("`{value}` names no version"));
            }
            "run" => {
                if let Some(what) = wrong_start(value) {
                    report(number, what);
                }
            }
            _ => {}
        }
    }
    if jobs != limits {
        report(
            0,
            format!("{jobs} jobs and {limits} `timeout-minutes`: each job needs one"),
        );
    }
    if !text.lines().any(|line| line.starts_with("permissions:")) {
        report(0, "has no `permissions:` for the whole workflow".to_owned());
    }
    findings
}

/// What is wrong with the command of a step.
fn wrong_start(command: &str) -> Option<String> {
    if command.starts_with(['|', '>']) || command.is_empty() {
        return Some("a script: make it a task, and start that".to_owned());
    }
    if !STARTS.iter().any(|start| command.starts_with(start)) {
        return Some(format!("`{command}` is no task"));
    }
    let task = command
        .strip_prefix("cargo xtask ")?
        .split_whitespace()
        .next()?;
    let known = crate::CommandLine::command()
        .get_subcommands()
        .any(|known| known.get_name() == task);
    (!known).then(|| format!("there is no task `{task}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "permissions: {}\njobs:\n  a:\n    runs-on: x\n    timeout-minutes: 5\n    steps:\n      - uses: a/b@v1\n      - run: cargo xtask ci\n";

    fn found(from: &str, to: &str) -> Vec<String> {
        assert!(GOOD.contains(from));
        let text = GOOD.replace(from, to).into_bytes();
        let files = Files::from([(format!("{FOLDER}a.yml"), text)]);
        check(&files).into_iter().map(|found| found.what).collect()
    }

    #[test]
    fn a_thin_workflow_passes() {
        assert_eq!(found("jobs", "jobs"), [""; 0]);
        assert_eq!(found("cargo xtask ci", ".ci/run"), [""; 0]);
    }

    #[test]
    fn each_rule_can_fail() {
        for (from, to, what) in [
            ("@v1", "", "names no version"),
            ("cargo xtask ci", "cargo test", "is no task"),
            ("cargo xtask ci", "cargo xtask no-such", "no task `no-such`"),
            ("cargo xtask ci", "|", "a script"),
            ("    timeout-minutes: 5\n", "", "`timeout-minutes`"),
            ("permissions: {}\n", "", "no `permissions:`"),
            ("    runs-on", "\truns-on", "a tab"),
        ] {
            let found = found(from, to);
            assert!(
                found.len() == 1 && found[0].contains(what),
                "{to:?}: {found:?}"
            );
        }
    }

    #[test]
    fn other_files_are_free() {
        let files = Files::from([("a.yml".to_owned(), b"\t".to_vec())]);
        assert!(check(&files).is_empty());
    }
}
