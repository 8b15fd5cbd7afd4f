//! A Rust file taken apart into code, texts and comments, line by line.
//!
//! This is a lexer's minimum: it knows comments, strings, characters and lifetimes, so that a rule
//! about code does not see a word in a comment or in a message. It does not parse; `rustc` and
//! `clippy` do that.

use std::path::Path;

/// One line, in three readings of the same width in characters; what does not belong is blank.
#[derive(Debug, Default, Clone)]
pub(crate) struct Line {
    /// Without comments and without what stands between quotes.
    pub(crate) code: String,
    /// Without comments.
    pub(crate) text: String,
    /// Comments only.
    pub(crate) comment: String,
    /// Whether it is compiled for tests only.
    pub(crate) test: bool,
}

/// A Rust file.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the root of the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
}

impl Source {
    /// Takes a file apart and marks what only tests compile.
    pub(crate) fn new(path: &str, content: &str) -> Self {
        let mut lines = split(content);
        let whole = is_test_path(path);
        mark_tests(&mut lines, whole);
        Self {
            path: path.to_owned(),
            lines,
        }
    }

    /// Lines with their numbers from 1.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        (1..).zip(&self.lines)
    }

    /// Whether the path lies under `folder`.
    pub(crate) fn is_in(&self, folder: &str) -> bool {
        self.path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    }

    /// Files of the modules that this file declares for tests only, without `.rs` or `/mod.rs`.
    pub(crate) fn test_modules(&self) -> Vec<String> {
        let file = Path::new(&self.path);
        let stem = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        let folder = file.parent().and_then(Path::to_str).unwrap_or_default();
        let folder = match stem {
            "mod" | "lib" | "main" => folder.to_owned(),
            _ => format!("{folder}/{stem}"),
        };
        let names = self
            .lines
            .iter()
            .filter(|line| line.test)
            .filter_map(|line| {
                let rest = line.code.trim().strip_suffix(';')?;
                rest.strip_prefix("pub(crate) ")
                    .unwrap_or(rest)
                    .strip_prefix("mod ")
            });
        names
            .map(|name| format!("{folder}/{}", name.trim()))
            .collect()
    }

    /// Marks the whole file as compiled for tests only.
    pub(crate) fn mark_as_test(&mut self) {
        self.lines.iter_mut().for_each(|line| line.test = true);
    }
}

/// Files that only tests compile, by their place.
fn is_test_path(path: &str) -> bool {
    path.split('/')
        .any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

/// Whether `code` holds `word` with no other letter, digit or `_` beside it.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    find_word(code, word).is_some()
}

/// Where [`has_word`] finds it first.
pub(crate) fn find_word(code: &str, word: &str) -> Option<usize> {
    let part_of_word = |sign: char| sign.is_alphanumeric() || sign == '_';
    code.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = code[..at].chars().next_back().is_some_and(part_of_word);
        let after = code[at + word.len()..]
            .chars()
            .next()
            .is_some_and(part_of_word);
        !(before && word.starts_with(part_of_word) || after && word.ends_with(part_of_word))
    })
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    LineComment,
    /// Depth of nesting.
    BlockComment(usize),
    /// Number of `#`; `None` for a string with escapes.
    Text(Option<usize>),
}

fn split(content: &str) -> Vec<Line> {
    let signs: Vec<char> = content.chars().collect();
    let at = |index: usize| signs.get(index).copied().unwrap_or('\0');
    let mut lines = Vec::new();
    let mut line = Line::default();
    let mut state = State::Code;
    let mut index = 0;
    while index < signs.len() {
        let sign = signs[index];
        if sign == '\n' {
            if state == State::LineComment {
                state = State::Code;
            }
            lines.push(std::mem::take(&mut line));
            index += 1;
            continue;
        }
        // How many signs belong together, what they are, and what follows.
        let (width, kind, next) = match state {
            State::Code if sign == '/' && at(index + 1) == '/' => {
                (2, State::LineComment, State::LineComment)
            }
            State::Code if sign == '/' && at(index + 1) == '*' => {
                (2, State::BlockComment(1), State::BlockComment(1))
            }
            State::Code if sign == '"' => (1, State::Code, State::Text(None)),
            State::Code
                if sign == 'r'
                    && starts_literal(&signs, index)
                    && raw_hashes(&signs, index + 1).is_some() =>
            {
                let hashes = raw_hashes(&signs, index + 1).unwrap_or(0);
                (2 + hashes, State::Code, State::Text(Some(hashes)))
            }
            State::Code if sign == '\'' => match character(&signs, index) {
                Some(width) => (width, State::Text(None), State::Code),
                None => (1, State::Code, State::Code),
            },
            State::Code => (1, State::Code, State::Code),
            State::LineComment => (1, state, state),
            State::BlockComment(depth) if sign == '/' && at(index + 1) == '*' => {
                (2, state, State::BlockComment(depth + 1))
            }
            State::BlockComment(depth) if sign == '*' && at(index + 1) == '/' => (
                2,
                state,
                if depth == 1 {
                    State::Code
                } else {
                    State::BlockComment(depth - 1)
                },
            ),
            State::BlockComment(_) => (1, state, state),
            State::Text(None) if sign == '\\' && at(index + 1) != '\n' => (2, state, state),
            State::Text(None) if sign == '"' => (1, State::Code, State::Code),
            State::Text(Some(hashes))
                if sign == '"' && (1..=hashes).all(|step| at(index + step) == '#') =>
            {
                (1 + hashes, State::Code, State::Code)
            }
            State::Text(_) => (1, state, state),
        };
        let end = (index + width).min(signs.len());
        for &sign in &signs[index..end] {
            let (code, text, comment) = match kind {
                State::Code => (sign, sign, ' '),
                State::Text(_) => (' ', sign, ' '),
                State::LineComment | State::BlockComment(_) => (' ', ' ', sign),
            };
            line.code.push(code);
            line.text.push(text);
            line.comment.push(comment);
        }
        state = next;
        index = end;
    }
    if !line.code.is_empty() {
        lines.push(line);
    }
    lines
}

/// Whether the `r` at `index` can begin a raw string: alone, or after the `b` or `c` of one.
fn starts_literal(signs: &[char], index: usize) -> bool {
    let part_of_word = |index: Option<usize>| {
        index
            .and_then(|at| signs.get(at))
            .is_some_and(|sign| sign.is_alphanumeric() || *sign == '_')
    };
    match index.checked_sub(1).map(|before| signs[before]) {
        Some('b' | 'c') => !part_of_word(index.checked_sub(2)),
        _ => !part_of_word(index.checked_sub(1)),
    }
}

/// The number of `#` before the quote of a raw string.
fn raw_hashes(signs: &[char], from: usize) -> Option<usize> {
    let hashes = signs[from..]
        .iter()
        .take_while(|&&sign| sign == '#')
        .count();
    (signs.get(from + hashes) == Some(&'"')).then_some(hashes)
}

/// The width of the character literal at `index`; `None` for a lifetime.
fn character(signs: &[char], index: usize) -> Option<usize> {
    let rest = &signs[index + 1..];
    if rest.first() == Some(&'\\') {
        let end = rest.iter().skip(2).position(|&sign| sign == '\'')?;
        return Some(end + 4);
    }
    (rest.get(1) == Some(&'\'')).then_some(3)
}

/// Marks items after `#[cfg(test)]` up to their closing brace or semicolon.
fn mark_tests(lines: &mut [Line], whole: bool) {
    let mut waiting = false;
    let mut depth = 0_usize;
    let mut inside = false;
    for line in lines {
        let starts = line
            .code
            .find("#[cfg(test)]")
            .or_else(|| line.code.find("#[cfg(all(test,"));
        let mut from = 0;
        if let Some(at) = starts
            && !inside
        {
            waiting = true;
            from = at + line.code[at..].find(']').map_or(0, |end| end + 1);
        }
        line.test = whole || waiting || inside;
        for sign in line.code[from..].chars() {
            match sign {
                '{' if waiting || inside => {
                    (waiting, inside) = (false, true);
                    depth += 1;
                }
                '}' if inside => {
                    depth -= 1;
                    inside = depth > 0;
                }
                ';' if waiting => waiting = false,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(content: &str) -> Vec<String> {
        Source::new("a/src/x.rs", content)
            .lines
            .into_iter()
            .map(|line| line.code.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn comments_and_texts_are_no_code() {
        assert_eq!(
            code("let a = \"un//safe\"; // unsafe\nb"),
            ["let a = \"        \";", "b"]
        );
        assert_eq!(code("a /* b /* c */ d */ e"), ["a                   e"]);
        assert_eq!(code("\"a\\\"b\" c"), ["\"    \" c"]);
        assert_eq!(code("\"two\nlines\" c"), ["\"", "     \" c"]);
    }

    #[test]
    fn raw_texts() {
        assert_eq!(code("r#\"a\"b\"# c"), ["r#\"   \"# c"]);
        assert_eq!(code("br\"\\\" c"), ["br\" \" c"]);
        assert_eq!(code("r#type b"), ["r#type b"]);
        assert_eq!(code("for\"a\""), ["for\" \""]);
    }

    #[test]
    fn characters_and_lifetimes() {
        assert_eq!(code("'\"' a"), ["    a"]);
        assert_eq!(code("'\\'' a"), ["     a"]);
        assert_eq!(code("'\\u{1F642}' a"), ["            a"]);
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), ["fn f<'a>(x: &'a str) {}"]);
    }

    #[test]
    fn texts_and_comments_have_their_own_reading() {
        let source = Source::new("a/src/x.rs", "f(\"t\"); // c");
        assert_eq!(source.lines[0].text.trim_end(), "f(\"t\");");
        assert_eq!(source.lines[0].comment.trim(), "// c");
    }

    #[test]
    fn test_items_are_marked_to_their_end() {
        let content = "a\n#[cfg(test)]\nmod tests {\n  fn f() { }\n}\nb\n#[cfg(test)]\nuse c;\nd\n";
        let marks: Vec<bool> = Source::new("a/src/x.rs", content)
            .lines
            .iter()
            .map(|line| line.test)
            .collect();
        assert_eq!(
            marks,
            [false, true, true, true, true, false, true, true, false]
        );
        assert!(Source::new("a/tests/x.rs", "a").lines[0].test);
        assert!(Source::new("a/src/x/tests.rs", "a").lines[0].test);
        assert!(!Source::new("a/src/testing/x.rs", "a").lines[0].test);
    }

    #[test]
    fn modules_for_tests_in_files_of_their_own() {
        let content = "#[cfg(test)]\nmod helpers;\nmod real;\n";
        assert_eq!(
            Source::new("a/src/x.rs", content).test_modules(),
            ["a/src/x/helpers"]
        );
        assert_eq!(
            Source::new("a/src/x/mod.rs", content).test_modules(),
            ["a/src/x/helpers"]
        );
    }

    #[test]
    fn words() {
        assert!(has_word("let x = unsafe { y }", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(!has_word("eprintln!(", "println!"));
        assert!(has_word("{println!(", "println!"));
        assert_eq!(find_word("xa a", "a"), Some(3));
    }
}
