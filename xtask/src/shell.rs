//! Starting other programs: the line that is printed is the line that can be repeated by hand.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A command line with its environment; words hold no blanks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    env: Vec<(&'static str, String)>,
    words: Vec<String>,
}

impl Line {
    /// Splits a line at its blanks.
    pub(crate) fn new(line: &str) -> Self {
        Self {
            env: Vec::new(),
            words: line.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Sets a variable for this command only.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Adds one word, which may hold blanks.
    pub(crate) fn arg(mut self, word: &str) -> Self {
        self.words.push(word.to_owned());
        self
    }

    /// Adds words that hold no blanks.
    pub(crate) fn words(mut self, line: &str) -> Self {
        self.words
            .extend(line.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds words, each of which may hold blanks.
    pub(crate) fn args(mut self, words: &[String]) -> Self {
        self.words.extend_from_slice(words);
        self
    }

    fn command(&self) -> Result<Command> {
        let (program, args) = self.words.split_first().context("an empty command line")?;
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Runs it with this program's streams.
    ///
    /// # Errors
    /// When it cannot start or ends with another exit code than 0.
    pub(crate) fn run(&self) -> Result<()> {
        println!("$ {self}");
        let status = self
            .command()?
            .status()
            .with_context(|| format!("cannot start `{self}`"))?;
        ensure!(status.success(), "`{self}` ended with {status}");
        Ok(())
    }

    /// Runs it and returns whether it ended with 0, and its standard output; errors still reach the terminal.
    ///
    /// # Errors
    /// When it cannot start or the output is not text.
    pub(crate) fn answer(&self) -> Result<(bool, String)> {
        let output = self
            .command()?
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start `{self}`"))?;
        let text = String::from_utf8(output.stdout)
            .with_context(|| format!("the output of `{self}` is not UTF-8"))?;
        Ok((output.status.success(), text))
    }

    /// Runs it and returns its standard output; errors still reach the terminal.
    ///
    /// # Errors
    /// As [`Line::run`], and when the output is not text.
    pub(crate) fn read(&self) -> Result<String> {
        let output = self
            .command()?
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start `{self}`"))?;
        ensure!(
            output.status.success(),
            "`{self}` ended with {}",
            output.status
        );
        String::from_utf8(output.stdout)
            .with_context(|| format!("the output of `{self}` is not UTF-8"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |word: &str| {
            if word.contains([' ', '*', '\'']) {
                format!("{word:?}")
            } else {
                word.to_owned()
            }
        };
        let env = self
            .env
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = self.words.iter().map(|word| quoted(word));
        f.write_str(&env.chain(words).collect::<Vec<_>>().join(" "))
    }
}

/// Makes the workspace's root the current folder, wherever the task was started.
///
/// # Errors
/// When cargo's word for it, or the folder that this program was built in, is no workspace.
pub(crate) fn enter_workspace() -> Result<()> {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&package)
        .parent()
        .context("xtask lies in a workspace")?;
    ensure!(
        root.join("Cargo.lock").is_file(),
        "no workspace at {}: start it with `cargo xtask`",
        root.display()
    );
    std::env::set_current_dir(root).with_context(|| format!("cannot enter {}", root.display()))
}

/// A duration for people: `12.3 s` or `4 min 05 s`.
pub(crate) fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_prints_as_it_can_be_typed() {
        let line = Line::new("cargo doc  --no-deps")
            .env("RUSTDOCFLAGS", "-D warnings")
            .arg("two words");
        assert_eq!(
            line.to_string(),
            "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps \"two words\""
        );
    }

    #[test]
    fn a_failing_program_is_an_error_with_its_line() {
        let error = Line::new("rustc --no-such-option")
            .read()
            .expect_err("rustc refuses it");
        assert!(
            format!("{error:#}").contains("`rustc --no-such-option` ended with"),
            "{error:#}"
        );
        let error = Line::new("no-such-program-at-all")
            .run()
            .expect_err("there is none");
        assert!(format!("{error:#}").contains("cannot start"), "{error:#}");
        assert!(Line::new("").run().is_err());
    }

    #[test]
    fn a_variable_reaches_the_program() {
        let line = Line::new("env").env("DFLASH_XTASK_TEST", "two words");
        assert!(
            line.read()
                .expect("env runs")
                .contains("DFLASH_XTASK_TEST=two words\n")
        );
    }

    #[test]
    fn durations() {
        assert_eq!(spoken(Duration::from_millis(1250)), "1.2 s");
        assert_eq!(spoken(Duration::from_secs(245)), "4 min 05 s");
    }
}
