//! Text on both ends of a model: tokenizer, chat template, detokenizer and stop strings.
//!
//! A model sees token ids; this module is the only place that knows how they are spelled. It wraps the `tokenizers`
//! crate (ids equal those of the published tokenizer.json) and a Jinja engine that is made to render chat templates
//! character for character as Python does: prompts that differ in a blank from those of training cost acceptance and
//! quality without any message.
//!
//! A special token's spelling inside a message stays text: only the template writes control tokens
//! (`Tokenizer::encode_chat`). Raw prompts are the user's own business (`Tokenizer::encode_raw`).

#[cfg(feature = "text")]
mod chat;
#[cfg(feature = "text")]
mod config;
#[cfg(feature = "text")]
mod detokenizer;
#[cfg(feature = "text")]
mod guard;
#[cfg(feature = "text")]
mod prepare;
#[cfg(feature = "text")]
mod python;
mod stop;
#[cfg(feature = "text")]
mod template;
#[cfg(feature = "text")]
mod tokenizer;

#[cfg(feature = "text")]
pub use chat::{EncodedChat, Message, Reasoning};
#[cfg(feature = "text")]
pub use detokenizer::Detokenizer;
pub use stop::{StopOutcome, StopStrings};
#[cfg(feature = "text")]
pub use template::{ChatTemplate, Clock, TemplateOptions};
#[cfg(feature = "text")]
pub use tokenizer::Tokenizer;
