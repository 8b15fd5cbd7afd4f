//! Chat templates, rendered as Python's transformers renders them.

use std::fmt;

use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ZonedDateTime};
use minijinja::value::{Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig};
use serde_json::{Map, Value};

use super::{prepare, python};
use crate::{Error, Result};

/// A render may do this much work, in steps of the engine, and a bit more for every byte of the conversation. Published
/// templates need some hundred steps per message; a hostile one is stopped within seconds and a few hundred megabytes.
const STEPS: u64 = 2_000_000;
const STEPS_PER_BYTE: u64 = 16;

/// Longest code of one tag, in bytes and without its strings, and the most `elif` of a template: what the parser's stack bears.
const LONGEST_TAG: usize = 8 << 10;
const MOST_BRANCHES: usize = 1000;
const PARSER_STACK: usize = 64 << 20;

/// A parsed chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    variables: Vec<String>,
    source: String,
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Default)]
pub struct TemplateOptions {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The switch of models that can think before they answer.
    pub enable_thinking: Option<bool>,
    /// How much to think: `low`, `medium`, `high` or what the model calls it. Also passed as `reasoning_strength`.
    pub reasoning_effort: Option<String>,
    /// Tools as JSON schemas.
    pub tools: Option<Value>,
    /// Documents to answer from.
    pub documents: Option<Value>,
    /// The time that the template is told; the system's local time when it is `None`.
    pub now: Option<Clock>,
    /// Further variables; they win over all others but the messages.
    pub extra: Map<String, Value>,
}

/// A point in time, with the local offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Seconds that the local time is ahead of UTC.
    pub offset: i32,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Syntax that the engine does not know, with its line.
    pub fn parse(source: &str) -> Result<Self> {
        check_depth(source)?;
        // The engine's parser calls itself once per operator, deeper than a small stack would bear.
        std::thread::scope(|scope| {
            let parser = std::thread::Builder::new().stack_size(PARSER_STACK);
            let parsed = parser.spawn_scoped(scope, || Self::parse_here(source));
            let refuse = |reason: String| Error::Template { reason };
            let parsed = parsed.map_err(|e| refuse(format!("no thread to parse it: {e}")))?;
            let failed = |_| refuse("the parser failed".into());
            parsed.join().map_err(failed)?
        })
    }

    fn parse_here(source: &str) -> Result<Self> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        env.set_syntax(syntax.map_err(|e| template_error(&e))?);
        let prepared = prepare::prepared(source);
        env.add_template_owned("chat", prepared)
            .map_err(|e| template_error(&e))?;
        let template = env.get_template("chat").map_err(|e| template_error(&e))?;
        let variables = template.undeclared_variables(false).into_iter().collect();
        Ok(Self {
            env,
            variables,
            source: source.to_owned(),
        })
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// True when the template reads the variable `name`.
    pub fn reads(&self, name: &str) -> bool {
        self.variables.iter().any(|v| v == name)
    }

    /// Renders messages (a list of objects) with the tokens that the tokenizer names (`bos_token` → `<s>`).
    ///
    /// # Errors
    /// The template's own refusal, an operation that Python refuses too, or more work than a template may do.
    pub fn render(
        &self,
        messages: &Value,
        tokens: &Map<String, Value>,
        options: &TemplateOptions,
    ) -> Result<String> {
        self.render_marked(messages, tokens, options, python::Marks::default())
    }

    /// The same, with marks in the conversation that the template must not notice.
    pub(super) fn render_marked(
        &self,
        messages: &Value,
        tokens: &Map<String, Value>,
        options: &TemplateOptions,
        marks: python::Marks,
    ) -> Result<String> {
        let mut context = tokens.clone();
        context.insert("tools".into(), options.tools.clone().unwrap_or_default());
        context.insert(
            "documents".into(),
            options.documents.clone().unwrap_or_default(),
        );
        context.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        if let Some(thinking) = options.enable_thinking {
            context.insert("enable_thinking".into(), thinking.into());
            context.insert("thinking".into(), thinking.into());
        }
        if let Some(effort) = &options.reasoning_effort {
            context.insert("reasoning_effort".into(), effort.clone().into());
            context.insert("reasoning_strength".into(), effort.clone().into());
        }
        context.extend(options.extra.clone());
        context.insert("messages".into(), messages.clone());
        let bytes: u64 = context.values().map(weight).sum();
        let now = options.now;
        let clock = Jinja::from_function(move |format: &str| local_time(now, format));
        let context = context.into_iter().map(|(k, v)| (k, Jinja::from(Serde(v))));
        let context = Jinja::from_pairs(context.chain([("strftime_now".to_owned(), clock)]));

        let mut env = self.env.clone();
        python::extend(&mut env, marks);
        env.set_fuel(Some(
            STEPS.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE)),
        ));
        let template = env.get_template("chat").map_err(|e| template_error(&e))?;
        template.render(context).map_err(|e| template_error(&e))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}

/// About how many bytes of text a value holds.
fn weight(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64 + 8,
        Value::Array(items) => items.iter().map(weight).sum::<u64>() + 8,
        Value::Object(fields) => {
            fields
                .iter()
                .map(|(key, v)| key.len() as u64 + weight(v))
                .sum::<u64>()
                + 8
        }
        _ => 8,
    }
}

/// The time, formatted as Python's `datetime.now().strftime`.
fn local_time(now: Option<Clock>, format: &str) -> Result<String, minijinja::Error> {
    let refuse = |what: String| minijinja::Error::new(ErrorKind::InvalidOperation, what);
    let zoned = match now {
        None => ZonedDateTime::now(),
        Some(clock) => {
            let offset = Offset::from_seconds(clock.offset).map_err(|e| refuse(e.to_string()))?;
            let time = Timestamp::from_second(clock.seconds).map_err(|e| refuse(e.to_string()))?;
            time.to_zoned_datetime(TimeZone::fixed(offset))
        }
    };
    jiff::fmt::strtime::format(format, &zoned)
        .map_err(|e| refuse(format!("strftime_now({format:?}): {e}")))
}

/// The engine's error with its line, or the template's own words where it refused the conversation.
fn template_error(error: &minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(refusal) = cause.downcast_ref::<python::Refusal>() {
            return Error::Template {
                reason: format!("refuses this conversation: {}", refusal.0),
            };
        }
        source = cause.source();
    }
    let line = error
        .line()
        .map(|line| format!("line {line}: "))
        .unwrap_or_default();
    let reason = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => {
            "the template does too much work (an endless loop?)".to_owned()
        }
        (kind, None) => kind.to_string(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
    };
    Error::Template {
        reason: format!("{line}{reason}"),
    }
}

/// Refuses a template that the parser could not parse within its stack.
fn check_depth(source: &str) -> Result<()> {
    let refuse = |what: &str| {
        Err(Error::Template {
            reason: format!("{what}; no published template comes near that"),
        })
    };
    if source.matches("elif").count() > MOST_BRANCHES {
        return refuse(&format!("it has more than {MOST_BRANCHES} `elif`"));
    }
    for tag in source.split("{{").flat_map(|part| part.split("{%")).skip(1) {
        let end = tag.find("}}").into_iter().chain(tag.find("%}")).min();
        let mut quote = None;
        let mut code = 0;
        for c in tag[..end.unwrap_or(tag.len())].chars() {
            match quote {
                Some(open) if c == open => quote = None,
                Some(_) => {}
                None if c == '"' || c == '\'' => quote = Some(c),
                None => code += c.len_utf8(),
            }
        }
        if code > LONGEST_TAG {
            return refuse(&format!("one of its tags has {code} bytes of code"));
        }
    }
    Ok(())
}
