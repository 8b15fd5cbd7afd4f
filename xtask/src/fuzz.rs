//! Long runs of the property tests that throw random, damaged and hostile files at the readers.
//!
//! Each pass draws a new seed and prints it, so that a failure can be repeated exactly. The tests
//! are the ones of the normal suite; no second set of fuzz targets can fall behind them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use crate::shell::{Line, spoken};
use crate::tidy;
use crate::tidy::source::{Source, has_word};

/// How long to go on.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Start no new pass after this many seconds
    #[arg(long, value_name = "N", default_value_t = 300)]
    seconds: u64,
    /// Cases per property and pass, where a test does not fix its own number
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    cases: u32,
    /// Seed of the first pass [default: the clock]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Where the test binaries lie, and how the names of those begin that read what users hand in.
const TESTS: &str = "dflash-core/tests/";
const READERS: &[&str] = &["readers", "text"];

/// Runs the properties over and over.
///
/// # Errors
/// At the first failure, with the line that repeats it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let targets = targets(&tidy::sources(&tidy::tracked()?));
    ensure!(
        !targets.is_empty(),
        "no property test of a reader in {TESTS}"
    );
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    let first = options.seed.unwrap_or(clock.as_secs());
    let (start, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let mut passes = 0;
    while passes == 0 || start.elapsed() < limit {
        for (test, properties) in &targets {
            let line = pass(test, properties, options.cases, first.wrapping_add(passes));
            line.run()
                .map_err(|error| anyhow!("{error:#}\nrepeat with: {line}"))?;
        }
        passes += 1;
    }
    println!(
        "{passes} passes in {} without a failure, seeds from {first}",
        spoken(start.elapsed())
    );
    Ok(())
}

/// Test binaries of readers, each with the names of its properties.
fn targets(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let mut targets: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        let Some(rest) = source.path.strip_prefix(TESTS) else {
            continue;
        };
        let test = rest
            .split('/')
            .next()
            .unwrap_or(rest)
            .trim_end_matches(".rs");
        let found = properties(source);
        if READERS.iter().any(|start| test.starts_with(start)) && !found.is_empty() {
            targets.entry(test.to_owned()).or_default().extend(found);
        }
    }
    targets
}

/// The names of the functions in `proptest!` blocks.
fn properties(source: &Source) -> Vec<String> {
    let mut names = Vec::new();
    let (mut inside, mut depth) = (false, 0_usize);
    for line in &source.lines {
        inside |= has_word(&line.code, "proptest!");
        if inside
            && depth == 1
            && let Some(rest) = line.code.trim_start().strip_prefix("fn ")
        {
            names.push(rest.split('(').next().unwrap_or(rest).trim().to_owned());
        }
        for sign in line.code.chars() {
            match sign {
                '{' if inside => depth += 1,
                '}' if inside => {
                    depth = depth.saturating_sub(1);
                    inside = depth > 0;
                }
                _ => {}
            }
        }
    }
    names
}

fn pass(test: &str, properties: &[String], cases: u32, seed: u64) -> Line {
    let line = format!(
        "cargo test --locked --profile ci -p dflash-core --features text,testing --test {test} -- {}",
        properties.join(" ")
    );
    Line::new(&line)
        .env("PROPTEST_CASES", cases.to_string())
        .env("PROPTEST_RNG_SEED", seed.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str = "//! A.\nfn helper() {}\nproptest! {\n    #![proptest_config(a)]\n    #[test]\n    fn one(x in 0..3) {\n        \
                           fn inner() {}\n    }\n\n    #[test]\n    fn two(x: bool) {}\n}\n#[test]\nfn plain() {}\n";

    #[test]
    fn properties_are_found_in_their_blocks() {
        assert_eq!(
            properties(&Source::new("a/tests/a.rs", CONTENT)),
            ["one", "two"]
        );
        assert!(properties(&Source::new("a/tests/a.rs", "//! proptest! { fn a() }\n")).is_empty());
    }

    #[test]
    fn binaries_of_readers_are_found_with_their_folders() {
        let paths = [
            "dflash-core/tests/readers/hostile.rs",
            "dflash-core/tests/models.rs",
            "dflash-core/src/text.rs",
        ];
        let found = targets(&paths.map(|path| Source::new(path, CONTENT)));
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [(
                "readers".to_owned(),
                vec!["one".to_owned(), "two".to_owned()]
            )]
        );
    }

    #[test]
    fn a_pass_can_be_repeated_from_its_line() {
        let line = pass("readers", &["one".to_owned(), "two".to_owned()], 7, 9).to_string();
        assert!(
            line.starts_with("PROPTEST_CASES=7 PROPTEST_RNG_SEED=9 cargo test "),
            "{line}"
        );
        assert!(line.ends_with("--test readers -- one two"), "{line}");
    }
}
