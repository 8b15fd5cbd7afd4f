//! Typed access to a JSON object that remembers which keys were read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The largest size of one dimension: far above any model, small enough that the product of two
/// never overflows.
pub(super) const MAX_SIZE: u64 = 1 << 24;

/// The most layers a model can have; bounds what is allocated before a tensor is seen.
pub(super) const MAX_LAYERS: u64 = 4096;

/// The largest position, window or sequence length.
pub(super) const MAX_POSITION: u64 = i32::MAX as u64;

/// The largest configuration file that is read.
const MAX_FILE: u64 = 16 << 20;

/// Reads a whole configuration file.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::Io {
        path: path.into(),
        source,
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        return Err(Error::NotFound {
            path: folder.into(),
            reason: "there is no such folder".into(),
        });
    }
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::config(
            path,
            "(top level)",
            "it is not a regular file",
        ));
    }
    if metadata.len() > MAX_FILE {
        return Err(Error::config(
            path,
            "(top level)",
            format!("{} bytes are too many for a configuration", metadata.len()),
        ));
    }
    std::fs::read(path).map_err(io)
}

/// Parses a file whose top level must be an object.
pub(super) fn parse_object(path: &Path, json: &[u8]) -> Result<Map<String, Value>> {
    match serde_json::from_slice(json) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(Error::config(
            path,
            "(top level)",
            format!("expected an object, found {}", kind(&other)),
        )),
        Err(e) => Err(Error::config(
            path,
            "(top level)",
            format!("not valid JSON: {e}"),
        )),
    }
}

/// An object of a configuration file. A key with the value `null` counts as absent.
#[derive(Debug)]
pub(super) struct Section<'a> {
    path: &'a Path,
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(path: &'a Path, map: &'a Map<String, Value>) -> Self {
        Self {
            path,
            prefix: String::new(),
            map,
            read: RefCell::default(),
        }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// The dotted name of a key, for messages.
    pub(super) fn dotted(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// An error about one of this object's keys.
    pub(super) fn error(&self, key: &str, reason: impl Into<String>) -> Error {
        Error::config(self.path, self.dotted(key), reason)
    }

    /// The refusal of a value that would change what is computed.
    pub(super) fn refused(&self, key: &str, value: impl Into<Value>) -> Error {
        let value = kind(&value.into());
        Error::unsupported(format!(
            "`{}` = {value} in `{}`",
            self.dotted(key),
            self.path.display()
        ))
    }

    /// The value of a key, which from now on counts as read.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        let value = self.map.get(key)?;
        self.read.borrow_mut().insert(key.to_owned());
        (!value.is_null()).then_some(value)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|v| !v.is_null())
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        self.error(key, format!("expected {expected}, found {}", kind(found)))
    }

    pub(super) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(key, "the key is missing and has no safe default"))
    }

    fn integer(&self, key: &str, low: u64, high: u64) -> Result<Option<u64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value.as_u64().ok_or_else(|| {
            self.wrong(key, &format!("a whole number from {low} to {high}"), value)
        })?;
        if number < low || number > high {
            return Err(self.error(
                key,
                format!("expected a whole number from {low} to {high}, found {number}"),
            ));
        }
        Ok(Some(number))
    }

    /// A whole number from `low` to `high`, if present.
    pub(super) fn number_in(&self, key: &str, low: u64, high: u64) -> Result<Option<usize>> {
        let number = self.integer(key, low, high)?;
        number
            .map(|n| {
                usize::try_from(n)
                    .map_err(|_| self.error(key, format!("{n} is too large for this machine")))
            })
            .transpose()
    }

    /// A dimension of a tensor: from 1 to [`MAX_SIZE`].
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        self.number_in(key, 1, MAX_SIZE)
    }

    /// A dimension that must be present.
    pub(super) fn need_size(&self, key: &str) -> Result<usize> {
        self.required(key, self.size(key)?)
    }

    /// A token id.
    pub(super) fn token(&self, key: &str) -> Result<Option<u32>> {
        let number = self.integer(key, 0, i32::MAX as u64)?;
        Ok(number.map(|n| u32::try_from(n).expect("invariant: limited to i32::MAX above")))
    }

    /// Token ids given as one number or as a list.
    pub(super) fn tokens(&self, key: &str) -> Result<Option<Vec<u32>>> {
        match self.value(key) {
            Some(Value::Array(items)) => {
                let id = |v: &Value| {
                    v.as_u64()
                        .and_then(|n| u32::try_from(n).ok())
                        .filter(|n| *n <= i32::MAX as u32)
                };
                let ids = items
                    .iter()
                    .map(|v| id(v).ok_or_else(|| self.wrong(key, "a list of token ids", v)));
                ids.collect::<Result<Vec<_>>>().map(Some)
            }
            _ => Ok(self.token(key)?.map(|id| vec![id])),
        }
    }

    /// A finite number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() && value.is_number() => Ok(Some(number)),
            _ => Err(self.wrong(key, "a finite number", value)),
        }
    }

    /// A finite number within the range of f32 for which `valid` holds.
    pub(super) fn float(
        &self,
        key: &str,
        expected: &str,
        valid: impl Fn(f32) -> bool,
    ) -> Result<Option<f32>> {
        let Some(number) = self.number(key)? else {
            return Ok(None);
        };
        let narrow = number as f32;
        if narrow.is_finite() && valid(narrow) {
            return Ok(Some(narrow));
        }
        Err(self.error(key, format!("expected {expected}, found {number}")))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a string", value))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let list = value
            .as_array()
            .ok_or_else(|| self.wrong(key, "a list of strings", value))?;
        list.iter()
            .map(|v| {
                v.as_str()
                    .ok_or_else(|| self.wrong(key, "a list of strings", v))
            })
            .collect::<Result<_>>()
            .map(Some)
    }

    /// A list of whole numbers from 0 to [`MAX_SIZE`].
    pub(super) fn indices(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let expected = "a list of whole numbers from 0";
        let list = value
            .as_array()
            .ok_or_else(|| self.wrong(key, expected, value))?;
        let index = |v: &Value| {
            let found = v
                .as_u64()
                .filter(|n| *n <= MAX_SIZE)
                .and_then(|n| usize::try_from(n).ok());
            found.ok_or_else(|| self.error(key, format!("expected {expected}, found {}", kind(v))))
        };
        list.iter().map(index).collect::<Result<_>>().map(Some)
    }

    pub(super) fn section(&self, key: &str) -> Result<Option<Section<'a>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let map = value
            .as_object()
            .ok_or_else(|| self.wrong(key, "an object", value))?;
        Ok(Some(Section {
            path: self.path,
            prefix: format!("{}{key}.", self.prefix),
            map,
            read: RefCell::default(),
        }))
    }

    /// The keys that nothing read, `null` ones left out.
    pub(super) fn unread(&self) -> Vec<&'a str> {
        let read = self.read.borrow();
        self.map
            .iter()
            .filter(|(k, v)| !v.is_null() && !read.contains(*k))
            .map(|(k, _)| k.as_str())
            .collect()
    }

    /// All keys with their values, without counting them as read.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.map.iter().map(|(k, v)| (k.as_str(), v))
    }
}

/// What a value is, for messages: short, whatever the file holds.
pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) if s.chars().count() <= 40 => format!("the string `{s}`"),
        Value::String(_) => "a long string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(json: &str, check: impl Fn(&Section<'_>)) {
        let path = Path::new("config.json");
        let map = parse_object(path, json.as_bytes()).expect("valid JSON");
        check(&Section::new(path, &map));
    }

    #[test]
    fn a_wrong_type_is_named_with_key_and_finding() {
        with(
            r#"{"a": "64", "b": 64.0, "c": true, "d": -1, "e": {"f": []}}"#,
            |s| {
                for (key, part) in [
                    ("a", "the string `64`"),
                    ("b", "64.0"),
                    ("c", "true"),
                    ("d", "-1"),
                ] {
                    let text = s.size(key).expect_err("wrong type").to_string();
                    assert!(
                        text.contains(&format!("`{key}`")) && text.contains(part),
                        "{text}"
                    );
                }
                let inner = s.section("e").expect("object").expect("present");
                let text = inner.number("f").expect_err("wrong type").to_string();
                assert!(text.contains("`e.f`") && text.contains("a list"), "{text}");
                assert!(s.boolean("d").is_err() && s.number("c").is_err() && s.text("c").is_err());
            },
        );
    }

    #[test]
    fn null_is_absent_and_read_keys_are_remembered() {
        with(r#"{"a": null, "b": 1, "c": 2}"#, |s| {
            assert_eq!(s.size("a").expect("absent"), None);
            assert_eq!(s.size("b").expect("present"), Some(1));
            assert_eq!(s.unread(), ["c"]);
        });
    }

    #[test]
    fn sizes_have_limits() {
        with(
            r#"{"zero": 0, "huge": 18446744073709551615, "ids": [1, -1], "far": 1e39}"#,
            |s| {
                assert!(
                    s.size("zero").is_err() && s.size("huge").is_err() && s.indices("ids").is_err()
                );
                assert!(s.tokens("ids").is_err() && s.float("far", "a number", |_| true).is_err());
            },
        );
        assert!(
            parse_object(Path::new("c"), b"[1]").is_err()
                && parse_object(Path::new("c"), b"{").is_err()
        );
    }
}
