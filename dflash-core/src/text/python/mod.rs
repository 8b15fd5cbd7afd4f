//! What chat templates expect of Python and the engine does not bring along.

mod json;
mod methods;

use std::fmt;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

/// The template's own refusal of a conversation (`raise_exception`).
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Adds the functions, filters, tests and methods that transformers offers to templates.
pub(super) fn extend(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(print);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| text(value));
    env.add_test("sequence", is_sequence);
    env.add_function("raise_exception", raise_exception);
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let refusal = Refusal(text(message));
    Err(Error::new(ErrorKind::InvalidOperation, refusal.0.clone()).with_source(refusal))
}

/// Python's idea of a sequence is whatever has a length and can be indexed.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    ) || (value.kind() == ValueKind::Iterable && value.len().is_some())
}

fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    separators: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let style = json::Style::new(
        ensure_ascii
            .or(kwargs.get("ensure_ascii")?)
            .unwrap_or(false),
        indent.or(kwargs.get("indent")?),
        separators.or(kwargs.get("separators")?),
        kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    )?;
    kwargs.assert_all_used()?;
    json::dumps(value, &style).map(Value::from)
}

/// Prints a value as `{{ … }}` does in Python.
fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(s) => out.write_str(s),
        None => out.write_str(&text(value)),
    };
    written.map_err(|e| Error::new(ErrorKind::WriteFailure, e.to_string()))
}

/// Python's `str(value)`.
fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), json::float)
        }
        _ => value.to_string(),
    }
}
