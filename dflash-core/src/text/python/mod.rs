//! What chat templates expect of Python and the engine does not bring along.

mod filters;
mod json;
mod marks;
mod methods;

use std::fmt;

use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::globals;

pub(super) use marks::Marks;

/// The template's own refusal of a conversation (`raise_exception`).
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Adds the functions, filters, tests and methods that transformers offers to templates. They look through `marks`.
pub(super) fn extend(env: &mut Environment<'static>, marks: Marks) {
    env.set_unknown_method_callback(move |state, value, method, args| {
        methods::call(marks, state, value, method, args)
    });
    env.set_formatter(print);
    filters::extend(env, marks);
    env.add_filter("tojson", tojson);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    env.add_test("callable", is_callable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
    env.add_function("joiner", globals::joiner);
}

fn is_callable(value: &Value) -> bool {
    // Macros and functions are the only objects without items that templates can hold.
    value.kind() == ValueKind::Plain || (value.as_object().is_some() && value.try_iter().is_err())
}

fn raise_exception(state: &State<'_, '_>, message: &Value) -> Result<Value, Error> {
    let refusal = Refusal(text(state, message)?);
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
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let style = json::Style::new(
        ensure_ascii
            .or(kwargs.get("ensure_ascii")?)
            .unwrap_or(false),
        indent.or(kwargs.get("indent")?),
        kwargs.get("separators")?,
        kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    )?;
    kwargs.assert_all_used()?;
    json::dumps(state, value, &style).map(Value::from)
}

/// Prints a value as `{{ … }}` does in Python.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(s) => out.write_str(s),
        None => out.write_str(&text(state, value)?),
    };
    written.map_err(|e| Error::new(ErrorKind::WriteFailure, e.to_string()))
}

/// Python's `str(value)`.
fn text(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    repr(state, &mut out, value, 0)?;
    Ok(out)
}

/// Values nested deeper than this are not printed.
const DEEPEST: usize = 128;

/// Python's `repr(value)`. Every item costs steps of the render: the engine's own printing would walk through lists
/// made of lists that are larger than any memory.
fn repr(state: &State<'_, '_>, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    state.consume_fuel(4)?;
    if depth > DEEPEST {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "nested too deep to be printed",
        ));
    }
    let tuple = value.downcast_object_ref::<Tuple>();
    match value.kind() {
        ValueKind::String if depth > 0 => out.push_str(&format!("{value:?}")),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(float) => out.push_str(&json::float(float)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let [open, close] = if tuple.is_some() {
                ['(', ')']
            } else {
                ['[', ']']
            };
            out.push(open);
            for (nth, item) in value.try_iter()?.enumerate() {
                out.push_str(if nth > 0 { ", " } else { "" });
                repr(state, out, &item, depth + 1)?;
            }
            out.push_str(if tuple.is_some_and(|items| items.len() == 1) {
                ","
            } else {
                ""
            });
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (nth, key) in value.try_iter()?.enumerate() {
                out.push_str(if nth > 0 { ", " } else { "" });
                repr(state, out, &key, depth + 1)?;
                out.push_str(": ");
                repr(state, out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}
