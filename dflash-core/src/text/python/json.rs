//! `json.dumps`, which the `tojson` of chat templates is.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Values nested deeper than this are refused: published schemas stay far below.
const DEEPEST: usize = 128;

/// The keyword arguments of `json.dumps`.
pub(super) struct Style {
    ascii: bool,
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort_keys: bool,
}

impl Style {
    pub(super) fn new(
        ascii: bool,
        indent: Option<Value>,
        separators: Option<Value>,
        sort_keys: bool,
    ) -> Result<Self, Error> {
        let indent = match indent.filter(|i| !i.is_none()) {
            None => None,
            Some(width) if width.is_integer() => {
                let width = i64::try_from(width)?.clamp(0, 64);
                Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
            }
            Some(text) => Some(
                text.as_str()
                    .ok_or_else(|| refuse("indent must be a number or a string"))?
                    .to_owned(),
            ),
        };
        let mut between_items = if indent.is_some() { "," } else { ", " }.to_owned();
        let mut after_key = ": ".to_owned();
        if let Some(pair) = separators.filter(|s| !s.is_none()) {
            let pair: Vec<Value> = pair.try_iter()?.take(3).collect();
            match pair.iter().map(Value::as_str).collect::<Vec<_>>()[..] {
                [Some(item), Some(key)] => {
                    (between_items, after_key) = (item.to_owned(), key.to_owned())
                }
                _ => return Err(refuse("separators must be two strings")),
            }
        }
        Ok(Self {
            ascii,
            indent,
            between_items,
            after_key,
            sort_keys,
        })
    }
}

pub(super) fn dumps(state: &State<'_, '_>, value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write(state, &mut out, value, style, 0)?;
    Ok(out)
}

fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

fn write(
    state: &State<'_, '_>,
    out: &mut String,
    value: &Value,
    style: &Style,
    depth: usize,
) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(refuse(format!(
            "tojson: nested more than {DEEPEST} levels deep"
        )));
    }
    // Every value costs steps; the engine charges for the text that comes of it.
    state.consume_fuel(4)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            nest(out, style, depth, ['[', ']'], items, |out, item| {
                write(state, out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                pairs.push((key_text(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            nest(out, style, depth, ['{', '}'], pairs, |out, (key, item)| {
                quote(out, &key, style.ascii);
                out.push_str(&style.after_key);
                write(state, out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Undefined => return Err(refuse("tojson: the value is undefined")),
        other => return Err(refuse(format!("tojson: a {other} is not JSON"))),
    }
    Ok(())
}

fn nest<T>(
    out: &mut String,
    style: &Style,
    depth: usize,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    let mut empty = true;
    for item in items {
        if !std::mem::take(&mut empty) {
            out.push_str(&style.between_items);
        }
        line(out, depth + 1);
        each(out, item)?;
    }
    if !empty {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        other => Err(refuse(format!("tojson: a {other} cannot be a key"))),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(f) if f.is_nan() => "NaN".into(),
        Ok(f) if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Ok(f) => float(f),
        Err(_) => value.to_string(),
    }
}

/// Python's `repr` of a float: shortest digits, exponents from 1e16 up and below 1e-4.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

fn quote(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
