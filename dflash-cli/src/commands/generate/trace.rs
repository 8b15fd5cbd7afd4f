//! `--trace`: a JSON line per round.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use dflash::{Error, Round};
use serde::Serialize;

use super::json::milliseconds;
use crate::failure::Failure;

/// The file, and how many rounds it holds.
#[derive(Debug)]
pub(super) struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
    rounds: usize,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    round: usize,
    context: usize,
    width: usize,
    drafted: usize,
    accepted: usize,
    produced: usize,
    near_ties: usize,
    draft_ms: f64,
    verify_ms: f64,
    commit_ms: f64,
    host_ms: f64,
    notes: &'a [String],
}

impl Trace {
    /// Makes the file, or empties it.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let refuse = |error| {
            Error::request(
                "trace",
                format!("cannot write `{}`: {error}", path.display()),
            )
        };
        let file = File::create(path).map_err(refuse)?;
        Ok(Self {
            path: path.into(),
            file: BufWriter::new(file),
            rounds: 0,
        })
    }

    /// Adds a round.
    pub(super) fn round(&mut self, round: &Round) -> Result<(), Failure> {
        self.rounds += 1;
        let line = Line {
            round: self.rounds,
            context: round.context,
            width: round.width,
            drafted: round.drafted,
            accepted: round.accepted,
            produced: round.produced,
            near_ties: round.near_ties,
            draft_ms: milliseconds(round.times.draft),
            verify_ms: milliseconds(round.times.verify),
            commit_ms: milliseconds(round.times.commit),
            host_ms: milliseconds(round.times.host),
            notes: &round.notes,
        };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(std::io::Error::from);
        written
            .and_then(|()| self.file.write_all(b"\n"))
            .map_err(|error| self.failure(&error))
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.file.flush().map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        let message = format!("cannot write the trace `{}`: {error}", self.path.display());
        Failure::work("E-IO", message, "is the disk full?")
    }
}
