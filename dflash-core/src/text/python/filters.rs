//! Filters that behave otherwise in Python's Jinja than in the engine, or that it lacks.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::filters as contrib;

use super::{Marks, text};

pub(super) fn extend(env: &mut Environment<'static>, marks: Marks) {
    env.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        text(state, value)
    });
    env.add_filter(
        "trim",
        move |state: &State<'_, '_>, value: &Value, chars: Option<&str>| {
            Ok::<_, Error>(marks.trim(&text(state, value)?, chars, true, true))
        },
    );
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_filter("truncate", contrib::truncate);
    env.add_filter("striptags", contrib::striptags);
}

/// Text that is no number gives the default.
fn int(value: &Value, default: Option<Value>) -> Value {
    let parsed = match (value.as_str(), value.kind()) {
        (Some(text), _) => text
            .trim()
            .parse::<i64>()
            .ok()
            .or_else(|| text.trim().parse::<f64>().ok().and_then(whole)),
        (None, ValueKind::Bool) => Some(i64::from(value.is_true())),
        (None, ValueKind::Number) if value.is_integer() => return value.clone(),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok().and_then(whole),
        _ => None,
    };
    parsed
        .map(Value::from)
        .unwrap_or_else(|| default.unwrap_or_else(|| Value::from(0)))
}

fn whole(number: f64) -> Option<i64> {
    let fits = number.is_finite() && number.abs() < 9e18;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "truncation is what int() does, and the range was checked"
    )]
    fits.then(|| number.trunc() as i64)
}

fn float(value: &Value, default: Option<Value>) -> Value {
    let parsed = match value.as_str() {
        Some(text) => text.trim().parse::<f64>().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    parsed
        .map(Value::from)
        .unwrap_or_else(|| default.unwrap_or_else(|| Value::from(0.0)))
}

fn escape(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    if value.kind() == ValueKind::Invalid {
        return Err(Error::new(ErrorKind::InvalidOperation, "an invalid value"));
    }
    let mut out = String::new();
    for c in text(state, value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}
