//! What the loop needs of a tokenizer, and how tokens become output.

use std::fmt::Debug;

use super::accept::clip_at_end;
use super::report::FinishReason;
use crate::Result;
use crate::text::StopStrings;

/// Turns ids into text.
pub trait TextDecoder: Debug {
    /// A decoder for one text.
    fn stream(&self, show_special: bool) -> Box<dyn TextStream>;
}

/// Decodes the ids of one text, one after another.
pub trait TextStream {
    /// Adds an id and returns the text that became complete; maybe none.
    fn push(&mut self, id: u32) -> String;

    /// Returns what is left at the end.
    fn finish(&mut self) -> String;
}

/// The output side of a request: its budget, ends, stop strings and text.
pub(super) struct Output {
    stream: Option<Box<dyn TextStream>>,
    stop: StopStrings,
    ends: Vec<u32>,
    limit: usize,
    /// All tokens so far.
    pub(super) tokens: Vec<u32>,
    /// All text so far that can no longer become part of a stop string.
    pub(super) text: String,
    /// What of both was not handed out yet.
    told: (usize, usize),
}

impl Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output")
            .field("tokens", &self.tokens.len())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Output {
    pub(super) fn new(
        stream: Option<Box<dyn TextStream>>,
        stop: Vec<String>,
        ends: Vec<u32>,
        limit: usize,
    ) -> Result<Self> {
        Ok(Self {
            stream,
            stop: StopStrings::new(stop)?,
            ends,
            limit,
            tokens: Vec::new(),
            text: String::new(),
            told: (0, 0),
        })
    }

    /// Tokens still wanted.
    pub(super) fn wanted(&self) -> usize {
        self.limit - self.tokens.len()
    }

    /// Takes a round's tokens, shortened to those that stay, and says whether the text is over.
    pub(super) fn take(&mut self, tokens: &mut Vec<u32>) -> Option<FinishReason> {
        tokens.truncate(self.wanted());
        let mut finish = clip_at_end(tokens, &self.ends).then_some(FinishReason::Stop);
        if let Some(kept) = self.decode(tokens) {
            tokens.truncate(kept);
            finish = Some(FinishReason::StopString);
        }
        self.tokens.extend_from_slice(tokens);
        finish.or_else(|| (self.wanted() == 0).then_some(FinishReason::Length))
    }

    /// Adds the tokens' text. If a stop string became complete: how many tokens it took.
    fn decode(&mut self, tokens: &[u32]) -> Option<usize> {
        let stream = self.stream.as_mut()?;
        for (i, id) in tokens.iter().enumerate() {
            let piece = stream.push(*id);
            let outcome = self.stop.feed(&piece);
            self.text.push_str(&outcome.text);
            if outcome.hit {
                return Some(i + 1);
            }
        }
        None
    }

    /// Ends the text: what was held back for a stop string that did not come is text after all.
    pub(super) fn end(&mut self, finish: FinishReason) {
        if finish == FinishReason::StopString {
            return;
        }
        if let Some(stream) = &mut self.stream {
            let outcome = self.stop.feed(&stream.finish());
            self.text.push_str(&outcome.text);
            if !outcome.hit {
                self.text.push_str(&self.stop.finish());
            }
        }
    }

    /// Tokens and text since the last call.
    pub(super) fn news(&mut self) -> (Vec<u32>, String) {
        let news = (
            self.tokens[self.told.0..].to_vec(),
            self.text[self.told.1..].to_owned(),
        );
        self.told = (self.tokens.len(), self.text.len());
        news
    }
}
