//! What a caller asks of an engine, and the checks before anything runs.

use super::sampler::Sampling;
use crate::{Error, Result};

/// One generation.
#[derive(Debug, Clone)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Longest generation, in tokens; at least 1.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Texts before which generation ends.
    pub stop: Vec<String>,
    /// Ids that end the text, the end token included in the result. Empty: run to `max_tokens`.
    pub end_ids: Vec<u32>,
    /// False decodes plainly although a draft is loaded.
    pub draft: bool,
    /// Rows per block, anchor included; `None` takes the draft's trained size. 1 decodes plainly.
    pub block_size: Option<usize>,
    /// Prompt tokens per step; changes nothing but memory and latency.
    pub prefill_chunk: usize,
    /// Longest sequence, prompt included; `None` takes the model's.
    pub context: Option<usize>,
    /// Whether special tokens appear in the text.
    pub show_special: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            max_tokens: 2048,
            sampling: Sampling::default(),
            stop: Vec::new(),
            end_ids: Vec::new(),
            draft: true,
            block_size: None,
            prefill_chunk: 512,
            context: None,
            show_special: false,
        }
    }
}

/// The bounds that a request is checked against.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Ids below this exist.
    pub vocab_size: usize,
    /// The model's longest sequence.
    pub context: usize,
    /// The draft's trained block size, if a draft is loaded.
    pub trained_block: Option<usize>,
    /// Whether ids can be turned into text.
    pub has_text: bool,
}

impl Request {
    /// Checks every field; nothing is clamped.
    ///
    /// # Errors
    /// [`Error::Request`] names the field, its value and what was expected.
    pub fn check(&self, bounds: &Bounds) -> Result<()> {
        self.sampling.check()?;
        if self.prompt.is_empty() {
            return Err(Error::request(
                "prompt",
                "it is empty, expected at least one token",
            ));
        }
        if let Some((at, id)) = self
            .prompt
            .iter()
            .enumerate()
            .find(|(_, id)| **id as usize >= bounds.vocab_size)
        {
            return Err(Error::request(
                "prompt",
                format!(
                    "id {id} at position {at} is outside the vocabulary of {} ids",
                    bounds.vocab_size
                ),
            ));
        }
        if self.max_tokens == 0 {
            return Err(Error::request(
                "max-tokens",
                "0 is out of range, expected at least 1",
            ));
        }
        if self.prefill_chunk == 0 {
            return Err(Error::request(
                "prefill-chunk",
                "0 is out of range, expected at least 1",
            ));
        }
        let context = self.context_limit(bounds);
        if self.context.is_some_and(|c| c > bounds.context) {
            return Err(Error::request(
                "context",
                format!(
                    "{context} is longer than the model's longest sequence of {} tokens",
                    bounds.context
                ),
            ));
        }
        if self.prompt.len() >= context {
            let reason = format!(
                "{} tokens leave no room for an answer in a context of {context} tokens",
                self.prompt.len()
            );
            return Err(Error::request("prompt", reason).with_hint(
                "shorten the prompt, or raise `--context` up to what the model allows",
            ));
        }
        match (self.block_size, bounds.trained_block) {
            (Some(0), _) => Err(Error::request(
                "block-size",
                "0 is out of range, expected at least 1",
            )),
            (Some(rows), Some(trained)) if rows > trained => {
                let reason = format!(
                    "{rows} is larger than the block of {trained} rows that this draft was trained for"
                );
                Err(Error::request("block-size", reason).with_hint(format!("use 1 to {trained}")))
            }
            _ if !self.stop.is_empty() && !bounds.has_text => {
                let hint = "stop strings need a tokenizer.json beside the model";
                Err(
                    Error::request("stop", "this model was loaded without a tokenizer")
                        .with_hint(hint),
                )
            }
            _ if self.stop.iter().any(String::is_empty) => {
                Err(Error::request("stop", "an empty text would stop at once"))
            }
            _ => Ok(()),
        }
    }

    /// The longest sequence that this request may reach.
    pub fn context_limit(&self, bounds: &Bounds) -> usize {
        self.context.unwrap_or(bounds.context)
    }

    /// The most tokens that it can generate.
    pub fn token_limit(&self, bounds: &Bounds) -> usize {
        self.max_tokens
            .min(self.context_limit(bounds) - self.prompt.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        vocab_size: 10,
        context: 8,
        trained_block: Some(4),
        has_text: false,
    };

    fn request() -> Request {
        Request {
            prompt: vec![1, 2],
            ..Request::default()
        }
    }

    #[test]
    fn every_field_is_checked() {
        let bad = [
            Request {
                prompt: vec![],
                ..request()
            },
            Request {
                prompt: vec![1, 10],
                ..request()
            },
            Request {
                prompt: vec![1; 8],
                ..request()
            },
            Request {
                max_tokens: 0,
                ..request()
            },
            Request {
                prefill_chunk: 0,
                ..request()
            },
            Request {
                context: Some(9),
                ..request()
            },
            Request {
                context: Some(2),
                ..request()
            },
            Request {
                block_size: Some(0),
                ..request()
            },
            Request {
                block_size: Some(5),
                ..request()
            },
            Request {
                stop: vec!["x".into()],
                ..request()
            },
        ];
        for case in bad {
            let error = case.check(&BOUNDS).expect_err("out of range");
            assert!(error.is_usage(), "{error}");
        }
        assert!(request().check(&BOUNDS).is_ok());
        assert!(
            Request {
                stop: vec![String::new()],
                ..request()
            }
            .check(&Bounds {
                has_text: true,
                ..BOUNDS
            })
            .is_err()
        );
    }

    #[test]
    fn the_context_bounds_the_tokens() {
        assert_eq!(request().token_limit(&BOUNDS), 6);
        assert_eq!(
            Request {
                max_tokens: 3,
                ..request()
            }
            .token_limit(&BOUNDS),
            3
        );
        assert_eq!(
            Request {
                context: Some(5),
                ..request()
            }
            .token_limit(&BOUNDS),
            3
        );
    }
}
