//! The two streams: text or JSON on standard output, everything else on standard error.

use std::io::{self, ErrorKind, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// Standard output, which may close at any time: then the program ends quietly.
#[derive(Debug)]
pub(crate) struct Text {
    out: io::Stdout,
    /// Whether the last character was something else than a newline.
    open_line: bool,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It is read.
    There,
    /// Nobody reads any more.
    Gone,
}

impl Text {
    pub(crate) fn new() -> Self {
        Self {
            out: io::stdout(),
            open_line: false,
        }
    }

    /// Writes and flushes, so that text appears as it comes.
    pub(crate) fn write(&mut self, text: &str) -> Result<Reader, Failure> {
        let Some(last) = text.chars().last() else {
            return Ok(Reader::There);
        };
        self.open_line = last != '\n';
        match self
            .out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush())
        {
            Ok(()) => Ok(Reader::There),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
            Err(error) => {
                let message = format!("cannot write to standard output: {error}");
                Err(Failure::work("E-IO", message, "is the disk full?"))
            }
        }
    }

    /// Ends the last line, if it is open.
    pub(crate) fn end_line(&mut self) -> Result<Reader, Failure> {
        if self.open_line {
            self.write("\n")
        } else {
            Ok(Reader::There)
        }
    }
}

/// Standard error. Nothing that fails here can be told to anybody.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Messages {
    colour: bool,
    terminal: bool,
}

impl Messages {
    pub(crate) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Self {
            colour: terminal && !refused,
            terminal,
        }
    }

    /// `error[CODE]: message`, and the advice on a line of its own.
    pub(crate) fn failure(self, failure: &Failure) {
        self.line(&format!(
            "{}: {}",
            self.paint("1;31", &format!("error[{}]", failure.code)),
            failure.message
        ));
        if let Some(hint) = &failure.hint {
            self.line(&format!("{}: {hint}", self.paint("1;36", "hint")));
        }
    }

    pub(crate) fn note(self, note: &str) {
        self.line(&format!("{}: {note}", self.paint("1;33", "note")));
    }

    pub(crate) fn line(self, line: &str) {
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// A bar for work of `total` units, on a terminal only.
    pub(crate) fn progress(self, what: &'static str, total: usize) -> Option<ProgressBar> {
        if !self.terminal {
            return None;
        }
        let style =
            ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} tokens, {eta} left").ok()?;
        let bar = ProgressBar::new(total as u64).with_style(style);
        bar.set_message(what);
        Some(bar)
    }

    fn paint(self, style: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{style}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
