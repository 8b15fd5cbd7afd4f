//! Keeps the spelling of special tokens inside messages text.
//!
//! A chat template mixes its own control tokens with what people wrote. To tell them apart, the conversation is rendered
//! twice: as it is, which gives the text, and with a mark before and after everything in it that a tokenizer would take
//! for a special token. Without their marks both must be the same text, so the marks say where in it messages ended up.
//! Replacing the spellings instead would change what templates see when they search or split a message; wrapping leaves
//! them whole. Text is then encoded with special tokens off, and those of the template stand in as single control
//! characters of a vocabulary extended for this purpose, so that text around them is cut as in any other encoding.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::chat::EncodedChat;
use super::python::Marks;
use super::stop::overlap;
use super::template::TemplateOptions;
use super::tokenizer::Inner;
use crate::{Error, Result};

/// Marks are rare characters that the conversation and the template do not contain: printable and without case, so that
/// no template function treats them in a special way.
const MARKS: std::ops::Range<u32> = 0x2_0000..0x2_a6d0;

/// How special tokens are spelled.
pub(super) struct Spellings<'a> {
    inner: &'a Inner,
    tokens: Vec<String>,
    /// Some are found in normalized text, where their spelling may differ.
    normalized: bool,
}

/// A conversation with marks.
pub(super) struct Marked {
    pub(super) messages: Value,
    pub(super) options: TemplateOptions,
    /// True when some text spells a whole special token, not only the start of one.
    pub(super) whole: bool,
    pub(super) marks: Marks,
}

impl<'a> Spellings<'a> {
    pub(super) fn of(inner: &'a Inner) -> Self {
        let added = inner.base.get_added_tokens_decoder();
        let special = || added.values().filter(|token| token.special);
        let normalized =
            inner.base.get_normalizer().is_some() && special().any(|token| token.normalized);
        Self {
            inner,
            tokens: special().map(|token| token.content.clone()).collect(),
            normalized,
        }
    }

    /// The conversation with marks, `None` when it needs none.
    pub(super) fn mark(
        &self,
        messages: &Value,
        options: &TemplateOptions,
        source: &str,
    ) -> Result<Option<Marked>> {
        let given = [
            Some(messages.clone()),
            options.tools.clone(),
            options.documents.clone(),
            Some(Value::Object(options.extra.clone())),
        ];
        let mut texts = Vec::new();
        given
            .iter()
            .flatten()
            .for_each(|value| strings(value, &mut texts));
        if !texts.iter().any(|text| self.suspicious(text)) {
            return Ok(None);
        }
        let marks = pick_marks(&texts, source)?;
        let mut marked = Marked {
            messages: Value::Null,
            options: options.clone(),
            whole: false,
            marks: Marks(Some(marks)),
        };
        let mut mark = |value: &Value| {
            let mut value = value.clone();
            self.mark_value(&mut value, &mut marked.whole, marks)?;
            Ok::<_, Error>(value)
        };
        let messages = mark(messages)?;
        let tools = options.tools.as_ref().map(&mut mark).transpose()?;
        let documents = options.documents.as_ref().map(&mut mark).transpose()?;
        let extra = match mark(&Value::Object(options.extra.clone()))? {
            Value::Object(extra) => extra,
            _ => Map::new(),
        };
        marked.messages = messages;
        marked.options = TemplateOptions {
            tools,
            documents,
            extra,
            ..marked.options
        };
        Ok(Some(marked))
    }

    fn suspicious(&self, text: &str) -> bool {
        self.normalized
            || self
                .tokens
                .iter()
                .any(|token| text.contains(token.as_str()))
            || self.started(text) > 0
    }

    /// The length of the longest end of `text` with which a special token starts: the next text could complete it.
    fn started(&self, text: &str) -> usize {
        self.tokens
            .iter()
            .map(|token| overlap(text, token))
            .max()
            .unwrap_or(0)
    }

    fn mark_value(&self, value: &mut Value, whole: &mut bool, marks: [char; 2]) -> Result<()> {
        match value {
            Value::String(text) if self.suspicious(text) => {
                *text = self.mark_text(text, whole, marks)?
            }
            Value::Array(items) => items
                .iter_mut()
                .try_for_each(|item| self.mark_value(item, whole, marks))?,
            Value::Object(fields) => fields
                .values_mut()
                .try_for_each(|item| self.mark_value(item, whole, marks))?,
            _ => {}
        }
        Ok(())
    }

    fn mark_text(&self, text: &str, whole: &mut bool, [open, close]: [char; 2]) -> Result<String> {
        let mut ranges = Vec::new();
        let encoding = self.inner.encode(text)?;
        for (id, &(start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            let Some(spelling) = text.get(start..end).filter(|_| self.inner.is_special(*id)) else {
                continue;
            };
            // Some special tokens swallow the blanks around them; these may still be stripped by the template.
            let start = start + spelling.len() - spelling.trim_start().len();
            let spelling = spelling.trim();
            if !spelling.is_empty() {
                ranges.push(start..start + spelling.len());
            }
        }
        *whole |= !ranges.is_empty();
        let started = text.len() - self.started(text);
        if started < text.len() && ranges.last().is_none_or(|last| last.end <= started) {
            ranges.push(started..text.len());
        }
        let mut out = String::with_capacity(text.len() + 8 * ranges.len());
        let mut at = 0;
        for range in ranges {
            out.push_str(&text[at..range.start]);
            out.push(open);
            out.push_str(&text[range.clone()]);
            out.push(close);
            at = range.end;
        }
        out.push_str(&text[at..]);
        Ok(out)
    }
}

fn strings<'v>(value: &'v Value, out: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => out.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(fields) => fields.iter().for_each(|(key, item)| {
            out.push(key);
            strings(item, out);
        }),
        _ => {}
    }
}

fn pick_marks(texts: &[&str], source: &str) -> Result<[char; 2]> {
    let all = texts
        .iter()
        .flat_map(|text| text.chars())
        .chain(source.chars());
    let used: std::collections::HashSet<u32> = all
        .map(u32::from)
        .filter(|code| MARKS.contains(code))
        .collect();
    let mut free = MARKS
        .filter(|code| !used.contains(code))
        .filter_map(char::from_u32);
    let (Some(open), Some(close)) = (free.next(), free.next()) else {
        return Err(Error::request(
            "messages",
            "they use every character of a whole Unicode plane",
        ));
    };
    Ok([open, close])
}

impl Marked {
    /// Takes the marks out of a rendered text: the text, and the byte ranges in it that messages wrote.
    pub(super) fn spans(&self, rendered: &str) -> (String, Vec<(usize, usize)>) {
        let mut text = String::with_capacity(rendered.len());
        let mut spans: Vec<(usize, usize)> = Vec::new();
        let mut opened = None;
        let [open, close] = self.marks.0.map_or([None; 2], |marks| marks.map(Some));
        for c in rendered.chars() {
            if Some(c) == open {
                opened = Some(text.len());
                // A template that cuts a message may leave one mark of a pair: it still tells whose its neighbour is.
                spans.push((text.len(), text.len() + 1));
            } else if Some(c) == close {
                let start = opened.take().unwrap_or(text.len().saturating_sub(1));
                spans.push((start, text.len()));
            } else {
                text.push(c);
            }
        }
        (text, spans)
    }
}

/// The tokenizer with special tokens in text taken for text, and two extra tokens that stand for something else.
pub(super) struct PlainEncoder {
    tokenizer: tokenizers::Tokenizer,
    /// Stands where the template wrote a special token.
    slot: (String, u32),
    /// Cuts a text in two.
    cut: (String, u32),
}

impl PlainEncoder {
    fn new(inner: &Inner) -> Result<Self> {
        let mut tokenizer = inner.base.clone();
        tokenizer.set_encode_special_tokens(true);
        let mut add = |name: &str| {
            // Unguessable, so that no message can spell it.
            use std::hash::{BuildHasher as _, RandomState};
            let (a, b) = (
                RandomState::new().hash_one(name),
                RandomState::new().hash_one(name),
            );
            let spelling = format!("\u{fdd0}{name}{a:016x}{b:016x}\u{fdd1}");
            inner.guarded(|| {
                tokenizer.add_tokens([AddedToken::from(spelling.as_str(), false).normalized(false)])
            })?;
            let id = tokenizer.token_to_id(&spelling);
            let id = id.ok_or_else(|| Error::Tokenizer {
                path: None,
                reason: "a token cannot be added".into(),
            })?;
            Ok::<_, Error>((spelling, id))
        };
        let (slot, cut) = (add("slot")?, add("cut")?);
        Ok(Self {
            tokenizer,
            slot,
            cut,
        })
    }
}

/// Encodes `text`, in which only special tokens outside `spans` are control tokens.
pub(super) fn encode(inner: &Inner, text: String, spans: &[(usize, usize)]) -> Result<EncodedChat> {
    let whole = inner.encode(&text)?;
    let found = whole.get_ids().iter().zip(whole.get_offsets());
    let special: Vec<_> = found
        .filter(|(id, _)| inner.is_special(**id))
        .map(|(&id, &range)| (id, range))
        .collect();
    let written =
        |&(start, end): &(usize, usize)| spans.iter().any(|&(from, to)| start < to && from < end);
    let kept: Vec<u32> = special
        .iter()
        .filter(|(_, range)| !written(range))
        .map(|&(id, _)| id)
        .collect();
    if kept.len() == special.len() {
        return Ok(EncodedChat {
            ids: whole.get_ids().to_vec(),
            text,
            notes: Vec::new(),
        });
    }
    let plain = match inner.plain.get() {
        Some(plain) => plain,
        None => {
            let made = PlainEncoder::new(inner)?;
            inner.plain.get_or_init(|| made)
        }
    };
    let note = format!(
        "{} special token(s) spelled in the messages were kept as text",
        special.len() - kept.len()
    );
    // Some vocabularies build a special token from plain text too; then its spelling is cut in two.
    for cutting in [false, true] {
        let mut replaced = String::with_capacity(text.len());
        let mut at = 0;
        for (_, range) in &special {
            let &(start, end) = range;
            replaced.push_str(&text[at..start]);
            at = start;
            if !written(range) {
                replaced.push_str(&plain.slot.0);
                at = end;
            } else if cutting {
                let blanks = text[start..end].len() - text[start..end].trim_start().len();
                let first = text[start + blanks..end]
                    .chars()
                    .next()
                    .map_or(0, char::len_utf8);
                at = start + blanks + first;
                replaced.push_str(&text[start..at]);
                replaced.push_str(&plain.cut.0);
            }
        }
        replaced.push_str(&text[at..]);
        let encoding = inner.guarded(|| plain.tokenizer.encode_fast(replaced.as_str(), false))?;
        let mut slots = kept.iter();
        let mut ids = Vec::with_capacity(encoding.len());
        let mut leaked = false;
        for &id in encoding.get_ids() {
            if id == plain.slot.1 {
                ids.extend(slots.next());
            } else if id != plain.cut.1 {
                leaked |= inner.is_special(id);
                ids.push(id);
            }
        }
        if !leaked && slots.next().is_none() {
            return Ok(EncodedChat {
                ids,
                text,
                notes: vec![note],
            });
        }
    }
    Err(Error::Tokenizer {
        path: None,
        reason: "a special token spelled in a message cannot be encoded as text".into(),
    })
}
