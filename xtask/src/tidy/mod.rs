//! The rules of the repository, checked on every file that git tracks.
//!
//! Rules look at lines, not at syntax trees: each is short enough to be read in full, and each has
//! a test that shows it fail. What the compiler or clippy checks as well is left to them.

mod layers;
mod machine;
pub(crate) mod manifest;
mod repo;
mod rust;
pub(crate) mod source;
mod text;
mod workflows;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell::Line;
use source::Source;

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    /// From 1; 0 stands for the whole file.
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// All tracked files: their paths from the root of the workspace, and what is in them.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Checks the tracked files.
///
/// # Errors
/// When a rule is broken; the places are printed before.
pub(crate) fn run() -> Result<()> {
    let files = tracked()?;
    for (path, lines) in rust::long_files(&files) {
        println!(
            "note: {path} has {lines} lines; one concept fits into {}",
            rust::LONG
        );
    }
    let findings = check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!(
            "{} places break the rules of the repository",
            findings.len()
        );
    }
    println!("{} files keep the rules of the repository", files.len());
    Ok(())
}

/// Reads what git tracks. A tracked file that was deleted in the working tree is left out.
///
/// # Errors
/// When git does not answer or a file cannot be read.
pub(crate) fn tracked() -> Result<Files> {
    // A checkout may belong to another user than the one who checks it.
    let line = Line::new("git -c")
        .arg("safe.directory=*")
        .arg("ls-files")
        .arg("-z");
    let list = line.read()?;
    let paths = list.split('\0').filter(|path| Path::new(path).is_file());
    paths
        .map(|path| {
            let content = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
            Ok((path.to_owned(), content))
        })
        .collect()
}

/// Applies every rule, in the order of paths and lines.
fn check(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, content) in files {
        findings.extend(machine::check(path, content));
        if let Some(content) = text::of(path, content) {
            findings.extend(text::check(path, content));
        }
    }
    let sources = sources(files);
    let printers = rust::printing_modules(&sources);
    for source in &sources {
        findings.extend(rust::check(source, &printers));
        findings.extend(layers::check(source));
    }
    findings.extend(manifest::check(files));
    findings.extend(repo::check(files));
    findings.extend(workflows::check(files));
    findings.sort();
    findings
}

/// The Rust files, with those marked that only tests compile.
pub(crate) fn sources(files: &Files) -> Vec<Source> {
    let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let mut sources: Vec<Source> = rust
        .map(|(path, content)| Source::new(path, &String::from_utf8_lossy(content)))
        .collect();
    let modules: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &mut sources {
        let belongs =
            |module: &String| source.path == format!("{module}.rs") || source.is_in(module);
        if modules.iter().any(belongs) {
            source.mark_as_test();
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter()
            .map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn a_finding_names_its_place() {
        assert_eq!(
            Finding::new("a.rs", 3, "wrong").to_string(),
            "a.rs:3: wrong"
        );
        assert_eq!(Finding::new("a.rs", 0, "wrong").to_string(), "a.rs: wrong");
    }

    #[test]
    fn files_of_test_modules_are_tests() {
        let files = files(&[
            (
                "a/src/lib.rs",
                "//! A.\n#[cfg(test)]\nmod fakes;\nmod real;\n",
            ),
            ("a/src/fakes.rs", "//! F.\n"),
            ("a/src/fakes/more.rs", "//! M.\n"),
            ("a/src/real.rs", "//! R.\n"),
        ]);
        let tests: Vec<bool> = sources(&files)
            .iter()
            .map(|source| source.lines[0].test)
            .collect();
        assert_eq!(tests, [true, true, false, false]);
    }

    #[test]
    fn rules_of_all_kinds_are_applied() {
        let files = files(&[
            (
                "dflash-core/src/spec/x.rs",
                "//! X.\nuse crate::models::Decoder;\nfn f() { a.unwrap(); } \n",
            ),
            ("Cargo.toml", "[workspace]\nmembers = [\"a\"]\n"),
        ]);
        let found: Vec<String> = check(&files).iter().map(ToString::to_string).collect();
        let has = |part: &str| found.iter().any(|finding| finding.contains(part));
        assert!(has("x.rs:2: `spec` uses `models`"), "{found:?}");
        assert!(has("x.rs:3: `.unwrap()`"), "{found:?}");
        assert!(has("x.rs:3: blanks at the end"), "{found:?}");
        assert!(has("a/Cargo.toml: is missing"), "{found:?}");
        assert!(has("LICENSE-MIT: is missing"), "{found:?}");
    }
}
