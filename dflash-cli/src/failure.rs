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
    pub(crate) fn work(
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            code,
            message: message.into(),
            hint: Some(hint.into()),
            exit: WORK,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = if error.is_usage() { USAGE } else { WORK };
        let hint = error
            .hint()
            .unwrap_or_else(|| general_hint(error.code()).into());
        Self {
            code: error.code(),
            message: error.to_string(),
            hint: Some(hint),
            exit,
        }
    }
}

/// What can be tried when the error itself knows nothing better.
fn general_hint(code: &str) -> &'static str {
    match code {
        "E-NOT-FOUND" => "give a folder that holds config.json and safetensors files, or `demo`",
        "E-IO" => "check that the file exists and may be read",
        "E-CONFIG" | "E-CHECKPOINT" | "E-SHAPE" => {
            "fetch the model again, or use another conversion of it"
        }
        "E-TOKENIZER" => "fetch the tokenizer files again, or give ids with `--prompt-ids`",
        "E-TEMPLATE" => {
            "give another template with `--chat-template FILE`, or a whole prompt with `--raw`"
        }
        "E-REQUEST" | "E-UNAVAILABLE" => "`dflash generate --help` says what every option takes",
        "E-UNSUPPORTED" => "`dflash inspect REF` shows what runs which models",
        code if code.starts_with("E-PAIR-") => {
            "use the draft that was made for this target, or `--draft none`"
        }
        _ => "this is a fault of the program or of a library; `-vv` shows more",
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
    let body = text
        .split("\n\nFor more information")
        .next()
        .unwrap_or(text);
    Failure {
        code: "E-USAGE",
        message: body.trim_end().to_owned(),
        hint: Some("`dflash --help` and `dflash COMMAND --help` list what there is".into()),
        exit: USAGE,
    }
}
