//! Methods of Python's strings, dicts and lists.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Calls a method that the engine does not know, as Python would.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(done) = of_string(text, method, args)
    {
        return done;
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// The string methods that differ from the engine's, or that it lacks.
fn of_string(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => trimmed(args, text, true, true),
        "lstrip" => trimmed(args, text, true, false),
        "rstrip" => trimmed(args, text, false, true),
        "split" => split(args, text, false),
        "rsplit" => split(args, text, true),
        "partition" => partition(args, |sep| text.split_once(sep), [text, "", ""]),
        "rpartition" => partition(args, |sep| text.rsplit_once(sep), ["", "", text]),
        "removeprefix" => affix(args, text, |what| text.strip_prefix(what)),
        "removesuffix" => affix(args, text, |what| text.strip_suffix(what)),
        _ => return None,
    })
}

/// What Python takes for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn trimmed(args: &[Value], text: &str, start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<&Value>,) = from_args(args)?;
    let chars: Option<&str> = match chars.filter(|c| !c.is_none()) {
        None => None,
        Some(chars) => Some(
            chars
                .as_str()
                .ok_or_else(|| wrong("strip takes characters"))?,
        ),
    };
    let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start {
        text.trim_start_matches(cut)
    } else {
        text
    };
    Ok(Value::from(if end {
        text.trim_end_matches(cut)
    } else {
        text
    }))
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
                None => (rest.trim_start_matches(is_space), ""),
                Some(at) => {
                    let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                    (&rest[at + width..], rest[..at].trim_end_matches(is_space))
                }
            }
        } else {
            match rest.find(is_space).filter(|_| !full) {
                None => (rest.trim_end_matches(is_space), ""),
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
