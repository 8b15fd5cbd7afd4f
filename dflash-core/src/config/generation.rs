//! `generation_config.json`: how the model's authors want text drawn from it.

use std::path::{Path, PathBuf};

use super::json::{Section, parse_object, read_file};
use super::keys::{Kind, unknown_key_notes};
use crate::Result;

/// The sampling defaults and end tokens that a model folder suggests; every field is optional.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// The file it was read from.
    pub path: PathBuf,
    /// Tokens that end a text; replaces the list of `config.json` when not empty.
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample at all; `false` is greedy decoding.
    pub do_sample: Option<bool>,
    /// Logits are divided by it; 0 is greedy decoding.
    pub temperature: Option<f32>,
    /// Keep tokens while the mass before them is below this.
    pub top_p: Option<f32>,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keep tokens with at least this part of the best token's probability.
    pub min_p: Option<f32>,
    /// Logits of tokens seen before are divided (positive) or multiplied (negative) by it.
    pub repetition_penalty: Option<f32>,
    /// Keys that were not understood.
    pub notes: Vec<String>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a model folder; `None` if the folder has none.
    ///
    /// # Errors
    /// The file exists but cannot be read, or a value has the wrong type or range.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("generation_config.json");
        if !path.exists() {
            return Ok(None);
        }
        let json = read_file(&path)?;
        Self::parse(&path, &json).map(Some)
    }

    /// Reads the file's content; `path` is for messages.
    ///
    /// # Errors
    /// A value has the wrong type or range.
    pub fn parse(path: &Path, json: &[u8]) -> Result<Self> {
        let map = parse_object(path, json)?;
        let section = Section::new(path, &map);
        let part = |n: f32| (0.0..=1.0).contains(&n);
        let mut config = Self {
            path: path.into(),
            eos_token_ids: section.tokens("eos_token_id")?.unwrap_or_default(),
            do_sample: section.boolean("do_sample")?,
            temperature: section.float("temperature", "a number of at least 0", |n| n >= 0.0)?,
            top_p: section.float("top_p", "a number above 0 and at most 1", |n| {
                n > 0.0 && n <= 1.0
            })?,
            top_k: section.number_in("top_k", 0, i32::MAX as u64)?,
            min_p: section.float("min_p", "a number from 0 to 1", part)?,
            repetition_penalty: section
                .float("repetition_penalty", "a number above 0", |n| n > 0.0)?,
            notes: Vec::new(),
        };
        config.notes = unknown_key_notes(&section, Kind::Generation, |_| false);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<GenerationConfig> {
        GenerationConfig::parse(Path::new("generation_config.json"), json.as_bytes())
    }

    #[test]
    fn reads_what_is_there() {
        let config = parse(
            r#"{"eos_token_id": [2, 0], "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "no_repeat_ngram_size": 3}"#,
        );
        let config = config.expect("valid");
        assert_eq!(
            (
                config.eos_token_ids.as_slice(),
                config.top_k,
                config.do_sample
            ),
            ([2, 0].as_slice(), Some(20), Some(true))
        );
        assert_eq!(
            (config.temperature, config.top_p, config.min_p),
            (Some(0.6), Some(0.95), None)
        );
        assert!(
            config
                .notes
                .iter()
                .any(|n| n.contains("no_repeat_ngram_size")),
            "{:?}",
            config.notes
        );
        assert_eq!(
            parse(r#"{"eos_token_id": 7}"#)
                .expect("valid")
                .eos_token_ids,
            [7]
        );
        assert!(
            parse(r#"{"eos_token_id": null}"#)
                .expect("valid")
                .eos_token_ids
                .is_empty()
        );
    }

    #[test]
    fn wrong_types_and_ranges_are_errors() {
        for json in [
            r#"{"temperature": -1}"#,
            r#"{"temperature": "hot"}"#,
            r#"{"top_p": 0}"#,
            r#"{"top_p": 1.5}"#,
            r#"{"top_k": 1.5}"#,
            r#"{"do_sample": 1}"#,
            r#"{"eos_token_id": [-1]}"#,
            r#"{"eos_token_id": "</s>"}"#,
            r#"{"repetition_penalty": 0}"#,
            "[]",
            "",
        ] {
            assert!(parse(json).is_err(), "{json}");
        }
    }
}
