//! tokenizer.json, id for id, with the special tokens that its neighbours name.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokenizers::{AddedToken, Encoding, Model as _};

use super::config::TokenizerConfig;
use super::detokenizer::{Detokenizer, Plan};
use super::template::ChatTemplate;
use crate::{Error, Result};

/// A model's tokenizer, its chat templates and its special tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(super) inner: Arc<Inner>,
    pub(super) templates: Arc<Vec<(String, ChatTemplate)>>,
    notes: Arc<Vec<String>>,
}

/// What the tokenizer and the detokenizers made from it share.
pub(super) struct Inner {
    pub(super) base: tokenizers::Tokenizer,
    /// The same tokenizer, taking special tokens in text for text; made when first needed.
    pub(super) plain: OnceLock<super::guard::PlainEncoder>,
    pub(super) plan: Plan,
    pub(super) config: TokenizerConfig,
    special: HashSet<u32>,
    /// What stands in front of every raw text: usually nothing or a BOS.
    front: Vec<u32>,
    path: Option<PathBuf>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("path", &self.path)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint folder: tokenizer.json, tokenizer_config.json, special_tokens_map.json and
    /// the chat template, from chat_template.jinja, chat_template.json or tokenizer_config.json, the first that exists.
    /// `None` when the folder has no tokenizer.json.
    ///
    /// # Errors
    /// A file that cannot be read, is not JSON, or describes no usable tokenizer or template.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let Some(tokenizer) = read(&folder.join("tokenizer.json"))? else {
            return Ok(None);
        };
        let config = read(&folder.join("tokenizer_config.json"))?;
        let special_map = read(&folder.join("special_tokens_map.json"))?;
        let jinja_path = folder.join("chat_template.jinja");
        let jinja = match read(&jinja_path)? {
            Some(bytes) => Some(utf8(bytes, &jinja_path)?),
            None => legacy_template(&folder.join("chat_template.json"))?,
        };
        let config = TokenizerConfig::read(config.as_deref(), special_map.as_deref(), folder)?;
        Self::build(
            &tokenizer,
            config,
            jinja.as_deref(),
            Some(folder.join("tokenizer.json")),
        )
        .map(Some)
    }

    /// The same from memory: the contents of tokenizer.json and tokenizer_config.json. A `chat_template` given here
    /// wins over the configuration's.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn from_bytes(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<&str>,
    ) -> Result<Self> {
        let config = TokenizerConfig::read(tokenizer_config, None, Path::new(""))?;
        Self::build(tokenizer_json, config, chat_template, None)
    }

    fn build(
        json: &[u8],
        mut config: TokenizerConfig,
        jinja: Option<&str>,
        path: Option<PathBuf>,
    ) -> Result<Self> {
        let mut notes = Vec::new();
        let base = parse(json, &config, path.as_deref(), &mut notes)?;
        let mut templates = Vec::new();
        if let Some(source) = jinja {
            config.templates.retain(|(name, _)| name != "default");
            templates.push(("default".to_owned(), ChatTemplate::parse(source)?));
        }
        for (name, source) in &config.templates {
            let parsed =
                ChatTemplate::parse(source).map_err(|e| e.at(format!("template `{name}`")))?;
            templates.push((name.clone(), parsed));
        }
        let added = base.get_added_tokens_decoder();
        let special = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, _)| id)
            .collect();
        let decoder = base
            .get_decoder()
            .and_then(|d| serde_json::to_value(d).ok());
        let plan = Plan::of(decoder.as_ref());
        let mut inner = Inner {
            base,
            plain: OnceLock::new(),
            plan,
            config,
            special,
            front: Vec::new(),
            path,
        };
        inner.front = inner.find_front(&mut notes)?;
        Ok(Self {
            inner: Arc::new(inner),
            templates: Arc::new(templates),
            notes: Arc::new(notes),
        })
    }

    /// The same tokenizer with another chat template in place of all its own.
    ///
    /// # Errors
    /// A template that does not parse.
    pub fn with_chat_template(&self, source: &str) -> Result<Self> {
        let templates = vec![("default".to_owned(), ChatTemplate::parse(source)?)];
        Ok(Self {
            templates: Arc::new(templates),
            ..self.clone()
        })
    }

    /// The template used when no tools are given.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.templates
            .iter()
            .find(|(name, _)| name == "default")
            .map(|(_, template)| template)
    }

    /// What was left out or added while loading.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The number of ids, added tokens included: every id of this tokenizer is below it.
    pub fn vocab_size(&self) -> usize {
        let base = &self.inner.base;
        let added = base
            .get_added_tokens_decoder()
            .keys()
            .map(|&id| id as usize + 1)
            .max();
        base.get_vocab_size(false).max(added.unwrap_or(0))
    }

    /// The id of the token spelled `token`, added tokens included.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.base.token_to_id(token)
    }

    /// The spelling of an id: for byte-level vocabularies that of the vocabulary, not the text.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.base.id_to_token(id)
    }

    /// The id of the EOS token that the tokenizer's configuration names.
    pub fn eos_id(&self) -> Option<u32> {
        self.named_id("eos_token")
    }

    /// The id of the BOS token that the tokenizer's configuration names.
    pub fn bos_id(&self) -> Option<u32> {
        self.named_id("bos_token")
    }

    /// The id of the padding token that the tokenizer's configuration names.
    pub fn pad_id(&self) -> Option<u32> {
        self.named_id("pad_token")
    }

    fn named_id(&self, name: &str) -> Option<u32> {
        self.token_to_id(self.inner.config.token(name)?)
    }

    /// Special tokens with their ids, sorted by id: those that are control tokens, not text.
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        let added = self.inner.base.get_added_tokens_decoder();
        let mut tokens: Vec<_> = added
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        tokens.sort();
        tokens
    }

    /// True for a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.is_special(id)
    }

    /// Encodes a text as it stands. Special tokens spelled in it become control tokens; in front comes what the
    /// tokenizer puts in front of every text (a BOS), unless the text starts with it already.
    ///
    /// # Errors
    /// Text that the tokenizer's model cannot represent.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.inner.encode(text)?.get_ids().to_vec();
        let front = &self.inner.front;
        if front.is_empty() || ids.starts_with(front) {
            return Ok(ids);
        }
        Ok([front.as_slice(), &ids].concat())
    }

    /// The text of `ids`: what a [`stream`](Self::stream) of them gives in all.
    ///
    /// It equals the decoder of tokenizer.json, except that where a run of byte tokens (`<0xNN>`) is not valid UTF-8 as
    /// a whole, the characters in it that are valid are kept.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.stream(skip_special);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text += &stream.finish();
        text
    }

    /// Starts a text that grows token by token. With `skip_special`, special tokens have no text; added tokens that are
    /// not special (`<think>` in many vocabularies) always have.
    pub fn stream(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner), skip_special)
    }
}

impl Inner {
    /// Encodes without adding anything; offsets are bytes of `text`.
    pub(super) fn encode(&self, text: &str) -> Result<Encoding> {
        self.guarded(|| self.base.encode(text, false))
    }

    /// Finds what the post-processor puts in front of a text. An explicit `add_bos_token` decides alone.
    ///
    /// What it puts behind is never used: an EOS would end the prompt before the model has said anything.
    fn find_front(&self, notes: &mut Vec<String>) -> Result<Vec<u32>> {
        let bare = self.encode("a")?;
        let whole = self.guarded(|| self.base.encode_fast("a", true))?;
        let (bare, whole) = (bare.get_ids(), whole.get_ids());
        let start = (0..whole.len())
            .find(|&i| !bare.is_empty() && whole[i..].starts_with(bare))
            .unwrap_or(0);
        if start + bare.len() < whole.len() {
            notes.push(
                "the tokenizer closes every text with a special token; prompts are left open"
                    .into(),
            );
        }
        let bos = self
            .config
            .token("bos_token")
            .and_then(|bos| self.base.token_to_id(bos));
        Ok(match self.config.add_bos {
            Some(true) => bos.into_iter().collect(),
            Some(false) => Vec::new(),
            None => whole[..start].to_vec(),
        })
    }

    /// The spelling of a token as its decoder expects it.
    pub(super) fn token(&self, id: u32) -> Option<String> {
        let added = self.base.get_added_vocabulary().simple_id_to_token(id);
        added.or_else(|| self.base.get_model().id_to_token(id))
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The whole text of a few ids; special tokens were filtered before.
    pub(super) fn decode_window(&self, ids: &[u32]) -> String {
        self.guarded(|| self.base.decode(ids, false))
            .unwrap_or_default()
    }

    /// Runs a call of the tokenizers crate, which panics on some files that it accepted before.
    pub(super) fn guarded<T>(&self, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
        guarded(self.path.as_deref(), call)
    }
}

fn guarded<T>(path: Option<&Path>, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    let refuse = |reason: String| Error::Tokenizer {
        path: path.map(Path::to_owned),
        reason,
    };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| refuse(error.to_string())),
        Err(_) => Err(refuse(
            "the tokenizer's description contradicts itself".into(),
        )),
    }
}

fn parse(
    json: &[u8],
    config: &TokenizerConfig,
    path: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<tokenizers::Tokenizer> {
    let refuse = |reason: String| Error::Tokenizer {
        path: path.map(Path::to_owned),
        reason,
    };
    // Checked first because the tokenizers crate panics on JSON that breaks off in certain places.
    serde_json::from_slice::<serde::de::IgnoredAny>(json)
        .map_err(|e| refuse(format!("not JSON: {e}")))?;
    let mut base = guarded(path, || tokenizers::Tokenizer::from_bytes(json))?;
    if base.get_truncation().is_some() {
        guarded(path, || base.with_truncation(None).map(|_| ()))?;
        notes.push(
            "the tokenizer's own truncation is off: prompts are never shortened silently".into(),
        );
    }
    if base.get_padding().is_some() {
        base.with_padding(None);
        notes.push("the tokenizer's own padding is off".into());
    }
    let named = config
        .named
        .iter()
        .map(|(_, token)| token)
        .chain(&config.extra);
    for token in named {
        let added = base.get_added_vocabulary();
        if added.is_special_token(token) {
            continue;
        }
        if base.token_to_id(token).is_none() {
            notes.push(format!(
                "special token `{token}` is not in the vocabulary and was left out"
            ));
            continue;
        }
        guarded(path, || {
            base.add_special_tokens([AddedToken::from(token.as_str(), true)])
        })?;
    }
    Ok(base)
}

/// The contents of a file, `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let regular = |path: &Path| match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(std::io::Error::other("it is not a regular file")),
    };
    match regular(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io {
            path: path.into(),
            source,
        }),
    }
}

fn utf8(bytes: Vec<u8>, path: &Path) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::Template {
        reason: format!("`{}` is not UTF-8", path.display()),
    })
}

/// The template of processors saved by older versions: `{"chat_template": "…"}`.
fn legacy_template(path: &Path) -> Result<Option<String>> {
    let Some(bytes) = read(path)? else {
        return Ok(None);
    };
    let refuse = |reason: String| Error::Tokenizer {
        path: Some(path.into()),
        reason,
    };
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|e| refuse(format!("not JSON: {e}")))?;
    let source = value
        .get("chat_template")
        .and_then(serde_json::Value::as_str);
    source
        .map(|s| Some(s.to_owned()))
        .ok_or_else(|| refuse("expected a string at `chat_template`".into()))
}
