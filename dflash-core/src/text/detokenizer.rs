//! Token ids to text, one id at a time.
//!
//! Decoding a growing list of ids again and again costs quadratic time, and decoding a fixed window of it loses or
//! repeats text where a character spans tokens. The decoders of published language models are simple enough to be run
//! forwards instead: byte-level ones are a stream of bytes, SentencePiece-like ones a stream of pieces in which runs of
//! `<0xNN>` spell bytes. Only a decoder of another shape is run on a short window.

use std::sync::Arc;

use serde_json::Value;

use super::tokenizer::Inner;

/// Turns a stream of token ids into text, keeping back what is not yet a whole character.
///
/// The pieces joined are the text of all ids: see [`Tokenizer::decode`](super::Tokenizer::decode).
#[derive(Debug, Clone)]
pub struct Detokenizer {
    inner: Arc<Inner>,
    skip_special: bool,
    /// Bytes of a character that is not complete yet.
    pending: Vec<u8>,
    /// True until an id has given a token, with text or without.
    at_start: bool,
    /// Leading characters that the decoder may still strip from the whole text.
    strip_left: usize,
    window: Window,
}

/// The ids that a decoder of unknown shape needs for context, and how much of their text was handed out.
#[derive(Debug, Clone, Default)]
struct Window {
    ids: Vec<u32>,
    given: usize,
}

/// A window is cut back to `WINDOW_KEPT` ids when it has grown to `WINDOW_FULL`, so the work per token is bounded.
const WINDOW_FULL: usize = 32;
const WINDOW_KEPT: usize = 8;

impl Detokenizer {
    pub(super) fn new(inner: Arc<Inner>, skip_special: bool) -> Self {
        let strip_left = match &inner.plan {
            Plan::Pieces(rules) => rules.strip.map_or(0, |(_, n)| n),
            _ => 0,
        };
        Self {
            inner,
            skip_special,
            pending: Vec::new(),
            at_start: true,
            strip_left,
            window: Window::default(),
        }
    }

    /// The text that `id` completes, often empty: ids outside the vocabulary have no text, nor have special tokens
    /// when they are skipped, and a character spread over several tokens comes with the last of them.
    pub fn push(&mut self, id: u32) -> String {
        let Some(token) = self.inner.token(id) else {
            return String::new();
        };
        if self.skip_special && self.inner.is_special(id) {
            return String::new();
        }
        let inner = Arc::clone(&self.inner);
        let text = match &inner.plan {
            Plan::Bytes => {
                push_token_bytes(&token, &mut self.pending);
                take_text(&mut self.pending, Invalid::PerSequence)
            }
            Plan::Pieces(rules) => self.push_piece(rules, token),
            Plan::Window => self.push_window(id),
        };
        self.at_start = false;
        text
    }

    /// The text of what was still kept back: an incomplete character gives U+FFFD, as a decoder of the whole would.
    pub fn finish(&mut self) -> String {
        match &self.inner.plan {
            Plan::Bytes => {
                let mut text = take_text(&mut self.pending, Invalid::PerSequence);
                if !self.pending.is_empty() {
                    self.pending.clear();
                    text.push(char::REPLACEMENT_CHARACTER);
                }
                text
            }
            Plan::Pieces(_) => self.flush_bytes(),
            Plan::Window => {
                let all = self.inner.decode_window(&self.window.ids);
                let text = all.get(self.window.given..).unwrap_or_default().to_owned();
                self.window = Window::default();
                text
            }
        }
    }

    fn push_piece(&mut self, rules: &PieceRules, mut token: String) -> String {
        for op in &rules.ops {
            token = op.apply(&token, self.at_start);
        }
        let mut text = String::new();
        match rules.byte_fallback.then(|| byte_token(&token)).flatten() {
            Some(byte) => {
                self.pending.push(byte);
                text = take_text(&mut self.pending, Invalid::PerByte);
            }
            None => {
                text += &self.flush_bytes();
                if rules.spaced && !self.at_start {
                    text.push(' ');
                }
                text += &token;
            }
        }
        self.strip(rules, text)
    }

    fn flush_bytes(&mut self) -> String {
        let mut text = take_text(&mut self.pending, Invalid::PerByte);
        text.extend(self.pending.drain(..).map(|_| char::REPLACEMENT_CHARACTER));
        text
    }

    fn strip(&mut self, rules: &PieceRules, text: String) -> String {
        let Some((what, _)) = rules.strip else {
            return text;
        };
        let mut rest = text.as_str();
        while self.strip_left > 0 && !rest.is_empty() {
            match rest.strip_prefix(what) {
                Some(after) => {
                    rest = after;
                    self.strip_left -= 1;
                }
                None => self.strip_left = 0,
            }
        }
        rest.to_owned()
    }

    fn push_window(&mut self, id: u32) -> String {
        let window = &mut self.window;
        window.ids.push(id);
        let all = self.inner.decode_window(&window.ids);
        let whole = all.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        // A character that is still incomplete after this many ids never will be.
        let until = if window.ids.len() >= WINDOW_FULL {
            all.len()
        } else {
            whole
        };
        let text = all.get(window.given..until).unwrap_or_default().to_owned();
        window.given = window.given.max(until);
        if window.ids.len() >= WINDOW_FULL {
            window.ids.drain(..WINDOW_FULL - WINDOW_KEPT);
            window.given = self.inner.decode_window(&window.ids).len();
        }
        text
    }
}

/// How a tokenizer's decoder is run forwards.
#[derive(Debug)]
pub(super) enum Plan {
    /// Byte-level: every character of a token stands for a byte.
    Bytes,
    /// Pieces of text, with rules.
    Pieces(PieceRules),
    /// Anything else: decode a short window of ids and take what is new.
    Window,
}

/// A decoder that works token by token.
#[derive(Debug, Default)]
pub(super) struct PieceRules {
    ops: Vec<PieceOp>,
    byte_fallback: bool,
    /// Tokens are joined with spaces (a tokenizer without a decoder).
    spaced: bool,
    /// Up to so many of this character are stripped from the start of the whole text.
    strip: Option<(char, usize)>,
}

#[derive(Debug)]
enum PieceOp {
    Replace { from: String, to: String },
    Metaspace { mark: char, drop_first: bool },
}

impl PieceOp {
    fn apply(&self, token: &str, first: bool) -> String {
        match self {
            Self::Replace { from, to } => token.replace(from.as_str(), to),
            Self::Metaspace { mark, drop_first } => {
                let blank = if *drop_first && first { "" } else { " " };
                token.replace(*mark, blank)
            }
        }
    }
}

impl Plan {
    /// Reads the `decoder` of a tokenizer.json.
    pub(super) fn of(decoder: Option<&Value>) -> Self {
        let Some(decoder) = decoder.filter(|d| !d.is_null()) else {
            return Self::Pieces(PieceRules {
                spaced: true,
                ..PieceRules::default()
            });
        };
        let mut steps = Vec::new();
        flatten(decoder, &mut steps);
        if let [only] = steps[..]
            && kind(only) == "ByteLevel"
        {
            return Self::Bytes;
        }
        piece_rules(&steps).map_or(Self::Window, Self::Pieces)
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn flatten<'a>(decoder: &'a Value, steps: &mut Vec<&'a Value>) {
    match decoder.get("decoders").and_then(Value::as_array) {
        Some(inner) if kind(decoder) == "Sequence" => inner.iter().for_each(|d| flatten(d, steps)),
        _ => steps.push(decoder),
    }
}

/// The rules of a sequence in which nothing after byte fallback or fusing looks at the joined text, but for one strip.
fn piece_rules(steps: &[&Value]) -> Option<PieceRules> {
    let mut rules = PieceRules::default();
    let mut fused = false;
    for step in steps {
        match kind(step) {
            "Replace" if !rules.byte_fallback && !fused => {
                let from = step.pointer("/pattern/String")?.as_str()?.to_owned();
                let to = step.get("content")?.as_str()?.to_owned();
                rules.ops.push(PieceOp::Replace { from, to });
            }
            "Metaspace" if !rules.byte_fallback && !fused => {
                let mark = one_char(step.get("replacement")?)?;
                let drop_first = match step.get("prepend_scheme").and_then(Value::as_str) {
                    Some(scheme) => scheme != "never",
                    None => step
                        .get("add_prefix_space")
                        .and_then(Value::as_bool)
                        .unwrap_or(true),
                };
                rules.ops.push(PieceOp::Metaspace { mark, drop_first });
            }
            "ByteFallback" if !rules.byte_fallback && !fused => rules.byte_fallback = true,
            "Fuse" => fused = true,
            "Strip" if fused && rules.strip.is_none() && step.get("stop")?.as_u64()? == 0 => {
                let n = usize::try_from(step.get("start")?.as_u64()?).ok()?;
                rules.strip = Some((one_char(step.get("content")?)?, n));
            }
            _ => return None,
        }
    }
    Some(rules)
}

fn one_char(value: &Value) -> Option<char> {
    let mut chars = value.as_str()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// The byte that a token `<0xNN>` spells.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

/// Appends the bytes that a byte-level token spells; one with a character outside the alphabet stands for itself.
fn push_token_bytes(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// The byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and up, in order.
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => printable(byte).then_some(byte),
        Err(_) => {
            let nth = usize::try_from(code.checked_sub(0x100)?).ok()?;
            (0..=u8::MAX).filter(|&b| !printable(b)).nth(nth)
        }
    }
}

/// What stands for bytes that are not UTF-8.
#[derive(Clone, Copy, PartialEq)]
enum Invalid {
    /// One U+FFFD for each longest invalid sequence.
    PerSequence,
    /// One U+FFFD for each byte.
    PerByte,
}

/// Takes the text of `pending`, leaving only a sequence at the end that further bytes could complete.
fn take_text(pending: &mut Vec<u8>, invalid: Invalid) -> String {
    let mut text = String::new();
    let mut taken = 0;
    loop {
        match std::str::from_utf8(&pending[taken..]) {
            Ok(rest) => {
                text.push_str(rest);
                taken = pending.len();
                break;
            }
            Err(error) => {
                let valid = taken + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&pending[taken..valid]));
                taken = valid;
                let Some(len) = error.error_len() else { break };
                let marks = if invalid == Invalid::PerByte { len } else { 1 };
                text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks));
                taken += len;
            }
        }
    }
    pending.drain(..taken);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_complete_and_has_no_doubles() {
        let mut seen = [false; 256];
        for code in 0..0x200u32 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                assert!(
                    !std::mem::replace(&mut seen[usize::from(byte)], true),
                    "byte {byte} twice"
                );
            }
        }
        assert!(seen.iter().all(|&s| s));
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('Ń'), Some(0xad));
        assert_eq!(byte_of('ń'), None);
    }

    #[test]
    fn incomplete_sequences_wait_and_invalid_ones_do_not() {
        let mut pending = vec![b'a', 0xe2, 0x82];
        assert_eq!(take_text(&mut pending, Invalid::PerSequence), "a");
        assert_eq!(pending, [0xe2, 0x82]);
        pending.push(0xac);
        assert_eq!(take_text(&mut pending, Invalid::PerSequence), "€");
        pending.extend([0xe2, 0x82, b'x']);
        assert_eq!(
            take_text(&mut pending.clone(), Invalid::PerSequence),
            "\u{fffd}x"
        );
        assert_eq!(
            take_text(&mut pending, Invalid::PerByte),
            "\u{fffd}\u{fffd}x"
        );
    }
}
