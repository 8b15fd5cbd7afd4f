//! What tokenizer_config.json and its neighbours say: named special tokens and chat templates.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The names under which special tokens are published, in the order in which templates see them.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The parts of a tokenizer_config.json that matter for prompts.
#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    /// Named special tokens, in a fixed order: `bos_token` → `<s>`.
    pub(super) named: Vec<(&'static str, String)>,
    /// Special tokens without a name of their own.
    pub(super) extra: Vec<String>,
    /// Chat templates by name; one alone is called `default`.
    pub(super) templates: Vec<(String, String)>,
    /// An explicit wish for or against a leading BOS.
    pub(super) add_bos: Option<bool>,
}

impl TokenizerConfig {
    /// Reads tokenizer_config.json, and special_tokens_map.json for names that the former lacks.
    pub(super) fn read(
        config: Option<&[u8]>,
        special_map: Option<&[u8]>,
        path: &Path,
    ) -> Result<Self> {
        let config = object(config, path, "tokenizer_config.json")?;
        let special_map = object(special_map, path, "special_tokens_map.json")?;
        let mut read = Self {
            add_bos: config.get("add_bos_token").and_then(Value::as_bool),
            ..Self::default()
        };
        for name in NAMES {
            let token = config.get(name).or_else(|| special_map.get(name));
            if let Some(token) = token.and_then(spelling) {
                read.named.push((name, token));
            }
        }
        for list in ["additional_special_tokens", "extra_special_tokens"] {
            let tokens = config.get(list).or_else(|| special_map.get(list));
            match tokens {
                Some(Value::Array(tokens)) => read.extra.extend(tokens.iter().filter_map(spelling)),
                Some(Value::Object(tokens)) => {
                    read.extra.extend(tokens.values().filter_map(spelling))
                }
                _ => {}
            }
        }
        read.templates = templates(config.get("chat_template"), path)?;
        Ok(read)
    }

    /// The spelling of a named special token.
    pub(super) fn token(&self, name: &str) -> Option<&str> {
        self.named
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, token)| token.as_str())
    }
}

fn object(bytes: Option<&[u8]>, folder: &Path, file: &str) -> Result<Map<String, Value>> {
    let Some(bytes) = bytes else {
        return Ok(Map::new());
    };
    let path = || folder.join(file);
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::Tokenizer {
            path: Some(path()),
            reason: "expected a JSON object".into(),
        }),
        Err(error) => Err(Error::Tokenizer {
            path: Some(path()),
            reason: format!("not JSON: {error}"),
        }),
    }
}

/// A token given as a string, or as an object that describes it.
fn spelling(token: &Value) -> Option<String> {
    let text = token
        .as_str()
        .or_else(|| token.get("content").and_then(Value::as_str))?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn templates(value: Option<&Value>, folder: &Path) -> Result<Vec<(String, String)>> {
    let refuse = |reason: &str| Error::Tokenizer {
        path: Some(folder.join("tokenizer_config.json")),
        reason: format!("`chat_template`: {reason}"),
    };
    let pair = |entry: &Value| {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        text("name")
            .zip(text("template"))
            .ok_or_else(|| refuse("expected objects with `name` and `template`"))
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![("default".to_owned(), source.clone())]),
        Some(Value::Array(entries)) => entries.iter().map(pair).collect(),
        Some(Value::Object(entries)) => entries
            .iter()
            .map(|(name, source)| Some((name.clone(), source.as_str()?.to_owned())))
            .collect::<Option<_>>()
            .ok_or_else(|| refuse("expected templates as strings")),
        Some(_) => Err(refuse("expected a string or a list of named templates")),
    }
}
