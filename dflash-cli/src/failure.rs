//! What the program says and which exit code it leaves with when it fails.

use std::fmt;

use dflash::Error;

/// The files or the work are wrong.
pub(crate) const WORK: u8 = 1;
/// The command line or the machine is wrong.
pub(crate) const USAGE: u8 = 2;

/// A failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) exit: u8,
}

impl Failure {
    /// The work failed in a way that no library error describes.
    pub(crate) fn work(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: Some(hint.into()), exit: WORK }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = if error.is_usage() { USAGE } else { WORK };
        Self { code: error.code(), message: error.to_string(), hint: error.hint(), exit }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error of the command line itself, in the words of the parser.
pub(crate) fn of_parser(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The parser's own pointer to `--help` becomes the hint.
    let body = text.split("\n\nFor more information").next().unwrap_or(text);
    Failure {
        code: "E-USAGE",
        message: body.trim_end().to_owned(),
        hint: Some("`dflash --help` and `dflash COMMAND --help` list what there is".into()),
        exit: USAGE,
    }
}
