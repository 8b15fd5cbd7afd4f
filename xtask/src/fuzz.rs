//! Long runs of the property tests that throw random, damaged and hostile files at the readers.
//!
//! Each pass draws a new seed and prints it, so that a failure can be repeated exactly. The tests
//! are the ones of the normal suite; no second set of fuzz targets can fall behind them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::shell::{Line, spoken};

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

/// Test binaries with readers' properties: features, name, and which tests.
const TARGETS: &[(&str, &str, &str)] = &[
    ("text,testing", "readers", "hostile"),
    ("text,testing", "text_nano", "text_without a_stream"),
];

/// Runs the properties over and over.
///
/// # Errors
/// At the first failure, with the line that repeats it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?
        .as_secs();
    let first = options.seed.unwrap_or(clock);
    let (start, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let mut passes = 0;
    while passes == 0 || start.elapsed() < limit {
        for target in TARGETS {
            let line = pass(*target, options.cases, first.wrapping_add(passes));
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

fn pass((features, test, filters): (&str, &str, &str), cases: u32, seed: u64) -> Line {
    let line = format!(
        "cargo test --locked --profile ci -p dflash-core --features {features} --test {test} -- {filters}"
    );
    Line::new(&line)
        .env("PROPTEST_CASES", cases.to_string())
        .env("PROPTEST_RNG_SEED", seed.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_can_be_repeated_from_its_line() {
        let line = pass(TARGETS[0], 7, 9).to_string();
        assert!(
            line.starts_with("PROPTEST_CASES=7 PROPTEST_RNG_SEED=9 cargo test "),
            "{line}"
        );
        assert!(line.ends_with("--test readers -- hostile"), "{line}");
    }
}
