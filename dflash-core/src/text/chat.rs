//! A conversation and its token ids.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::guard;
use super::template::{ChatTemplate, TemplateOptions};
use super::tokenizer::Tokenizer;
use crate::{Error, Result};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool` or what the template knows.
    pub role: String,
    /// The text, or a list of parts for templates that take one; null where a message has none.
    #[serde(default)]
    pub content: Value,
    /// Whatever else the template may read: `tool_calls`, `reasoning_content`, `name` …
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Value::String(text.into()),
            fields: Map::new(),
        }
    }
}

/// A conversation as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChat {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The text that the template made.
    pub text: String,
    /// What the caller should know about it.
    pub notes: Vec<String>,
}

/// Whether, and how much, a model thinks before it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reasoning {
    /// It thinks.
    On,
    /// It does not.
    Off,
    /// It thinks so much: `low`, `medium`, `high`, or what the model calls it.
    Level(String),
}

impl std::str::FromStr for Reasoning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            level
                if !level.is_empty()
                    && level
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') =>
            {
                Ok(Self::Level(level.to_owned()))
            }
            _ => Err(Error::request(
                "reasoning",
                format!("`{text}`: expected `on`, `off` or a level such as `low`"),
            )),
        }
    }
}

impl TemplateOptions {
    /// Sets the template's variables for `reasoning`. The note says where the template reads none of them.
    pub fn set_reasoning(
        &mut self,
        reasoning: &Reasoning,
        template: &ChatTemplate,
    ) -> Option<String> {
        let switch = ["enable_thinking", "thinking"];
        let level = ["reasoning_effort", "reasoning_strength"];
        let names = match reasoning {
            Reasoning::On | Reasoning::Off => {
                self.enable_thinking = Some(*reasoning == Reasoning::On);
                switch
            }
            Reasoning::Level(name) => {
                self.enable_thinking = Some(true);
                self.reasoning_effort = Some(name.clone());
                level
            }
        };
        if names.iter().any(|name| template.reads(name)) {
            return None;
        }
        let other = if names == switch { level } else { switch };
        Some(
            match (reasoning, other.iter().any(|name| template.reads(name))) {
                (Reasoning::Level(_), true) => {
                    "the chat template switches reasoning on or off, it has no levels".to_owned()
                }
                (_, true) => {
                    "the chat template has levels of reasoning, but no switch for it".to_owned()
                }
                (_, false) => "the chat template has no switch for reasoning".to_owned(),
            },
        )
    }
}

impl Tokenizer {
    /// Renders a conversation with the chat template: the text only.
    ///
    /// # Errors
    /// No messages, no template, or a template that refuses them.
    pub fn render_chat(&self, messages: &[Message], options: &TemplateOptions) -> Result<String> {
        let template = self.template_for(messages, options)?;
        template.render(
            &Value::Array(messages.iter().map(as_value).collect()),
            &self.template_tokens(),
            options,
        )
    }

    /// Encodes a conversation with the chat template.
    ///
    /// Special tokens that the template writes become control tokens. Their spelling inside messages, tools and
    /// documents stays text: nobody who writes a message can end it or speak for somebody else. Where no message
    /// holds such a spelling, the ids are those of the rendered text.
    ///
    /// # Errors
    /// No messages, no template, a template that refuses them, or special spellings that cannot be kept as text.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        options: &TemplateOptions,
    ) -> Result<EncodedChat> {
        let template = self.template_for(messages, options)?;
        let messages = Value::Array(messages.iter().map(as_value).collect());
        let tokens = self.template_tokens();
        let text = template.render(&messages, &tokens, options)?;
        let spellings = guard::Spellings::of(&self.inner);
        let Some(marked) = spellings.mark(&messages, options, template.source())? else {
            return Ok(EncodedChat {
                ids: self.inner.encode(&text)?.get_ids().to_vec(),
                text,
                notes: Vec::new(),
            });
        };
        let rendered =
            template.render_marked(&marked.messages, &tokens, &marked.options, marked.marks);
        let spans = rendered
            .ok()
            .map(|rendered| marked.spans(&rendered))
            .filter(|(plain, _)| *plain == text);
        match spans {
            Some((_, spans)) => guard::encode(&self.inner, text, &spans),
            // Only the start of a special token stood at the end of some text: nothing to protect.
            None if !marked.whole => {
                Ok(EncodedChat { ids: self.inner.encode(&text)?.get_ids().to_vec(), text, notes: Vec::new() })
            }
            None => Err(Error::Template {
                reason: "a message spells a special token and the template depends on it, so that it cannot be kept as text"
                    .into(),
            }),
        }
    }

    fn template_for(
        &self,
        messages: &[Message],
        options: &TemplateOptions,
    ) -> Result<&ChatTemplate> {
        if messages.is_empty() {
            return Err(Error::request(
                "messages",
                "the conversation is empty; expected at least one message",
            ));
        }
        let named = |wanted: &str| {
            self.templates
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, t)| t)
        };
        let tools = options.tools.as_ref().is_some_and(|tools| !tools.is_null());
        let template = tools
            .then(|| named("tool_use"))
            .flatten()
            .or_else(|| named("default"));
        template.ok_or_else(|| {
            let names: Vec<_> = self.templates.iter().map(|(name, _)| format!("`{name}`")).collect();
            let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::Template { reason: format!("the tokenizer has no default chat template (found: {found}); give one, or a raw prompt") }
        })
    }

    /// The named special tokens, as templates see them.
    fn template_tokens(&self) -> Map<String, Value> {
        let named = &self.inner.config.named;
        named
            .iter()
            .map(|(name, token)| ((*name).to_owned(), token.clone().into()))
            .collect()
    }
}

/// A message as templates expect it: no fields that are null, and the reasoning under each of its names.
fn as_value(message: &Message) -> Value {
    let mut object = Map::new();
    object.insert("role".into(), message.role.clone().into());
    object.insert("content".into(), message.content.clone());
    object.extend(message.fields.clone());
    object.retain(|_, value| !value.is_null());
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|name| object.get(*name))
        .cloned();
    if let Some(reasoning) = reasoning {
        object
            .entry("thinking")
            .or_insert_with(|| reasoning.clone());
        object.insert("reasoning_content".into(), reasoning);
    }
    Value::Object(object)
}
