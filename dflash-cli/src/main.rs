//! The `dflash` command.

mod args;
mod commands;
mod failure;
mod output;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Command, CommandLine};
use failure::Failure;
use output::Messages;

fn main() -> ExitCode {
    let messages = Messages::new();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => return refuse(&error, messages),
    };
    let done = match line.command {
        Command::Generate(args) => commands::generate::run(*args, messages),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Compare(args) => commands::compare::run(*args, messages),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, messages),
    }
}

fn report(failure: &Failure, messages: Messages) -> ExitCode {
    messages.failure(failure);
    ExitCode::from(failure.exit)
}

/// Help and version go to standard output, errors of the command line are printed like all others.
fn refuse(error: &clap::Error, messages: Messages) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed stream is nothing to complain about.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::USAGE))
        }
        _ => report(&failure::of_parser(error), messages),
    }
}
