//! Text on both ends of a model: tokenizer, chat template, detokenizer and stop strings.
//!
//! A model sees token ids; this module is the only place that knows how they are spelled. It wraps the `tokenizers`
//! crate (ids equal those of the published tokenizer.json) and a Jinja engine that is made to render chat templates
//! character for character as Python does: prompts that differ in a blank from those of training cost acceptance and
//! quality without any message.
//!
//! A special token's spelling inside a message stays text: only the template writes control tokens
//! ([`Tokenizer::encode_chat`]). Raw prompts are the user's own business ([`Tokenizer::encode_raw`]).

mod chat;
mod config;
mod detokenizer;
mod guard;
mod prepare;
mod python;
mod stop;
mod template;
mod tokenizer;

pub use chat::{EncodedChat, Message, Reasoning};
pub use detokenizer::Detokenizer;
pub use stop::{StopOutcome, StopStrings};
pub use template::{ChatTemplate, Clock, TemplateOptions};
pub use tokenizer::Tokenizer;
