//! Methods of Python's strings, dicts and lists.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::Marks;

/// Calls a method that the engine does not know, as Python would on a text without `marks`.
pub(super) fn call(
    marks: Marks,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => {
            let asks =
                matches!(method, "startswith" | "endswith" | "count") || method.starts_with("is");
            if asks && marks.are_in(text) {
                let plain = Value::from(marks.removed_from(text));
                return pycompat::unknown_method_callback(state, &plain, method, args);
            }
            of_string(marks, text, method, args)
        }
        None => of_container(value, method, args),
    }
    .unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, args))
}

/// The string methods that differ from the engine's, or that it lacks.
fn of_string(
    marks: Marks,
    text: &str,
    method: &str,
    args: &[Value],
) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => stripped(marks, args, text, true, true),
        "lstrip" => stripped(marks, args, text, true, false),
        "rstrip" => stripped(marks, args, text, false, true),
        "split" => split(args, text, false),
        "rsplit" => split(args, text, true),
        "partition" => partition(args, |sep| text.split_once(sep), [text, "", ""]),
        "rpartition" => partition(args, |sep| text.rsplit_once(sep), ["", "", text]),
        "removeprefix" => affix(args, text, |what| text.strip_prefix(what)),
        "removesuffix" => affix(args, text, |what| text.strip_suffix(what)),
        "title" => none(args).map(|()| Value::from(title(text))),
        "index" => index(args, text),
        "ljust" => justified(args, text, |missing| (0, missing)),
        "rjust" => justified(args, text, |missing| (missing, 0)),
        _ => return None,
    })
}

/// The list and dict methods that the engine lacks.
fn of_container(value: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    match (value.kind(), method) {
        (ValueKind::Seq, "index") => Some(from_args(args).and_then(|(what,): (&Value,)| {
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(Value::from)
                .ok_or_else(|| wrong("the list does not hold that value"))
        })),
        (ValueKind::Map, "copy") => Some(none(args).map(|()| value.clone())),
        _ => None,
    }
}

fn none(args: &[Value]) -> Result<(), Error> {
    from_args(args)
}

/// Upper case at the start of every run of letters, lower case in it.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
}

fn index(args: &[Value], text: &str) -> Result<Value, Error> {
    let (what,): (&str,) = from_args(args)?;
    let at = text
        .find(what)
        .ok_or_else(|| wrong("substring not found"))?;
    Ok(Value::from(text[..at].chars().count()))
}

fn justified(
    args: &[Value],
    text: &str,
    sides: impl Fn(usize) -> (usize, usize),
) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    if width > 10_000 {
        return Err(wrong("a width of more than 10000 characters"));
    }
    let (left, right) = sides(width.saturating_sub(text.chars().count()));
    let fill = fill.unwrap_or(" ");
    Ok(Value::from(fill.repeat(left) + text + &fill.repeat(right)))
}

/// What Python takes for white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn stripped(
    marks: Marks,
    args: &[Value],
    text: &str,
    start: bool,
    end: bool,
) -> Result<Value, Error> {
    let (chars,): (Option<&Value>,) = from_args(args)?;
    let chars = match chars.filter(|c| !c.is_none()) {
        None => None,
        Some(chars) => Some(
            chars
                .as_str()
                .ok_or_else(|| wrong("strip takes characters"))?,
        ),
    };
    Ok(Value::from(marks.trim(text, chars, start, end)))
}

fn split(args: &[Value], text: &str, from_right: bool) -> Result<Value, Error> {
    let (sep, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.or(kwargs.get("sep")?).filter(|s| !s.is_none());
    let most = most.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let most = usize::try_from(most).ok();
    let parts: Vec<&str> = match &sep {
        None => blank_split(text, most, from_right),
        Some(sep) => {
            let sep = sep
                .as_str()
                .filter(|s| !s.is_empty())
                .ok_or_else(|| wrong("split takes a separator with text"))?;
            let most = most.map_or(usize::MAX, |n| n.saturating_add(1));
            if from_right {
                let mut parts: Vec<&str> = text.rsplitn(most, sep).collect();
                parts.reverse();
                parts
            } else {
                text.splitn(most, sep).collect()
            }
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Splits at runs of white space, at most `most` times; the rest keeps its inner blanks.
fn blank_split(text: &str, most: Option<usize>, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = if from_right {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    while !rest.is_empty() {
        let full = most.is_some_and(|n| parts.len() >= n);
        let (part, after) = if from_right {
            match rest.rfind(is_space).filter(|_| !full) {
                None => (rest, ""),
                Some(at) => {
                    let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                    (&rest[at + width..], rest[..at].trim_end_matches(is_space))
                }
            }
        } else {
            match rest.find(is_space).filter(|_| !full) {
                None => (rest, ""),
                Some(at) => (&rest[..at], rest[at..].trim_start_matches(is_space)),
            }
        };
        parts.push(part);
        rest = after;
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn partition<'a>(
    args: &[Value],
    find: impl Fn(&str) -> Option<(&'a str, &'a str)>,
    otherwise: [&str; 3],
) -> Result<Value, Error> {
    let (sep,): (&str,) = from_args(args)?;
    let parts = find(sep).map_or(otherwise.map(Value::from), |(a, b)| {
        [a, sep, b].map(Value::from)
    });
    Ok(Value::from(minijinja::value::Tuple::from(parts)))
}

fn affix<'a>(
    args: &[Value],
    text: &'a str,
    cut: impl Fn(&str) -> Option<&'a str>,
) -> Result<Value, Error> {
    let (what,): (&Value,) = from_args(args)?;
    if what.kind() != ValueKind::String {
        return Err(wrong("expected a string"));
    }
    Ok(Value::from(
        cut(what.as_str().unwrap_or_default()).unwrap_or(text),
    ))
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}
