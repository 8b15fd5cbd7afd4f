//! Development tasks: `cargo xtask ci` is exactly what CI checks, `cargo xtask tidy` the rules of
//! the repository, `cargo xtask test` the test suite, `cargo xtask fuzz` the readers' long run.
//!
//! Tasks start other programs and print what they start; what they check lives in the crates.

mod apple_check;
mod ci;
mod compare;
mod dist;
mod fixtures;
mod fuzz;
mod licences;
mod mlx_host;
mod mlx_peer;
mod proofs;
mod shell;
mod smoke;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Development tasks of the workspace"
)]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run what CI checks, cheapest first, up to the first failure
    Ci(ci::Options),
    /// Check the rules of the repository on all tracked files
    Tidy,
    /// Run the test suite
    Test,
    /// Compare the backends on the recorded models and the embedded pair
    Compare(compare::Options),
    /// Print the parity report: one row against several, per operation and model
    Parity,
    /// Build the program with the MLX backend on Linux, or test it there (`mlx-host test`)
    MlxHost(mlx_host::Options),
    /// Measure the MLX backend against the published Python package, on the same library
    MlxPeer(mlx_peer::Options),
    /// Type-check and lint the code for Apple's machines from Linux
    AppleCheck,
    /// Make test data
    #[command(subcommand)]
    Fixtures(fixtures::Fixture),
    /// Throw random and damaged files at every reader
    Fuzz(fuzz::Options),
    /// Build the archive of a release for this machine
    Dist,
}

/// The tests that measure parity print what they measured.
const PARITY: &str = "cargo test --locked --profile ci -p dflash-core -p dflash-candle --features dflash-core/text,dflash-core/testing,dflash-candle/testing --test parity -- --nocapture --test-threads 1";

fn main() -> ExitCode {
    match run(CommandLine::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    shell::enter_workspace()?;
    match task {
        Task::Ci(options) => ci::run(&options),
        Task::Tidy => tidy::run(),
        Task::Test => ci::test(),
        Task::Compare(options) => compare::run(&options),
        Task::Parity => shell::Line::new(PARITY).run(),
        Task::MlxHost(options) => mlx_host::run(&options),
        Task::MlxPeer(options) => mlx_peer::run(&options),
        Task::AppleCheck => apple_check::run(),
        Task::Fixtures(fixture) => fixtures::run(&fixture),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Dist => dist::run(),
    }
}
