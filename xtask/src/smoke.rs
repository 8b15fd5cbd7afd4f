//! Builds the program with its default features, in the profile of the tests, and lets it answer with its embedded model.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::shell::Line;

const PROGRAM: &str = "dflash-cli/src/main.rs";
const PROMPT: &str = "What is 2 + 3?";
const DRAFTS: &[&str] = &["none", "demo:d1", "demo:d2"];

/// Compares the answers of plain decoding and of both drafts.
///
/// # Errors
/// When the program does not build, says nothing, or a draft changes what it says.
pub(crate) fn run() -> Result<()> {
    if !Path::new(PROGRAM).is_file() {
        println!("skipped: there is no {PROGRAM} yet");
        return Ok(());
    }
    Line::new("cargo build --locked --profile ci -p dflash-cli").run()?;
    let mut plain: Option<String> = None;
    for draft in DRAFTS {
        let line = Line::new("cargo run --quiet --locked --profile ci -p dflash-cli -- generate --max-tokens 64 --draft")
            .arg(draft)
            .arg(PROMPT)
            .env("DFLASH_SETTINGS", "none");
        println!("$ {line}");
        let answer = line.read()?;
        println!("{}", answer.trim_end());
        ensure!(!answer.trim().is_empty(), "`{line}` says nothing");
        let plain = plain.get_or_insert_with(|| answer.clone());
        ensure!(
            *plain == answer,
            "`{line}` changes the text of plain decoding: {plain:?}"
        );
    }
    Ok(())
}
