//! Rules for Rust files.

use super::source::{Line, Source, find_word, has_word};
use super::{Files, Finding, text};

/// Lines of a file that holds one concept.
pub(super) const LONG: usize = 400;
/// Lines that no file may have more of.
const TOO_LONG: usize = 600;

const PRINTING: &[&str] = &[
    "println!",
    "eprintln!",
    "print!",
    "eprint!",
    "io::stdout",
    "io::stderr",
];
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "dbg!"];
/// Where `unsafe` may stand: one file, and the folders of kernels.
const UNSAFE_FILE: &str = "dflash-core/src/checkpoint/mmap.rs";
const UNSAFE_FOLDER: &str = "/src/kernels/";

/// Rust files that are longer than one concept needs, with their lines.
pub(super) fn long_files(files: &Files) -> Vec<(&str, usize)> {
    let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let counted = rust.map(|(path, content)| {
        (
            path.as_str(),
            content.iter().filter(|&&byte| byte == b'\n').count(),
        )
    });
    counted
        .filter(|(_, lines)| (LONG + 1..=TOO_LONG).contains(lines))
        .collect()
}

/// Files and folders, without `.rs`, that may print: the modules of the binary, and xtask.
pub(super) fn printing_modules(sources: &[Source]) -> Vec<String> {
    const ROOT: &str = "dflash-cli/src";
    let declared = |file: &str| -> Vec<String> {
        let source = sources
            .iter()
            .find(|source| source.path == format!("{ROOT}/{file}"));
        let names = source
            .iter()
            .flat_map(|source| &source.lines)
            .filter_map(|line| {
                let rest = line.code.trim().strip_suffix(';')?;
                let (_, name) = rest
                    .rsplit_once("mod ")
                    .filter(|(before, _)| before.is_empty() || before.starts_with("pub"))?;
                Some(format!("{ROOT}/{name}"))
            });
        names.collect()
    };
    let library = declared("lib.rs");
    let mut modules = declared("main.rs");
    modules.retain(|module| !library.contains(module));
    modules.extend([format!("{ROOT}/main"), "xtask/src".to_owned()]);
    modules
}

/// Checks one file.
pub(super) fn check(source: &Source, printers: &[String]) -> Vec<Finding> {
    let path = source.path.as_str();
    let may_print = path.ends_with("/build.rs")
        || path.contains("/examples/")
        || printers
            .iter()
            .any(|module| path.strip_suffix(".rs") == Some(module) || source.is_in(module));
    let may_be_unsafe = path == UNSAFE_FILE || path.contains(UNSAFE_FOLDER);
    // Where code serves several users, in macros and in the tests' helpers, a lint may fire for some
    // of them only, and `expect` would fail for the others.
    let macros = source
        .lines
        .iter()
        .any(|line| has_word(&line.code, "macro_rules!"));
    let mut findings = Vec::new();
    let mut report = |line: usize, what: String| findings.push(Finding::new(path, line, what));

    if source.lines.len() > TOO_LONG {
        report(
            0,
            format!(
                "{} lines, more than {TOO_LONG}: split it by concepts",
                source.lines.len()
            ),
        );
    }
    if needs_header(path)
        && !source
            .lines
            .first()
            .is_some_and(|line| line.comment.starts_with("//!"))
    {
        report(
            1,
            "does not begin with a `//!` header that says what it is".to_owned(),
        );
    }
    for (number, line) in source.numbered() {
        let code = line.code.as_str();
        if let Some(word) = text::left_over(&line.comment) {
            report(number, format!("`{word}`: finish it, or say it as a limit"));
        }
        if let Some(word) = UNFINISHED.iter().find(|word| has_word(code, word)) {
            report(number, format!("`{word}` has no place in finished code"));
        }
        if !line.test
            && !may_print
            && let Some(word) = PRINTING.iter().find(|word| has_word(code, word))
        {
            report(
                number,
                format!("`{word}` in a library: return it, or send a `tracing` event"),
            );
        }
        if !line.test && code.contains(".unwrap()") {
            report(
                number,
                "`.unwrap()`: return an error, or `expect` with the invariant".to_owned(),
            );
        }
        if attribute(code, "allow") {
            let has_reason = attribute_text(source, number).contains("reason");
            if !(line.test || macros) {
                report(number, "`allow`: use `expect` with a reason".to_owned());
            } else if !has_reason {
                report(
                    number,
                    "`allow` without a reason, or use `expect` with one".to_owned(),
                );
            }
        }
        if attribute(code, "expect") && !attribute_text(source, number).contains("reason") {
            report(number, "`expect` without a reason".to_owned());
        }
        if code.contains("#[ignore]") {
            report(number, "`#[ignore]` without a reason".to_owned());
        }
        if has_word(code, "unsafe") {
            if !may_be_unsafe {
                report(
                    number,
                    format!("`unsafe` outside {UNSAFE_FILE} and folders of kernels"),
                );
            }
            if is_unsafe_block(source, number) && !has_safety(source, number) {
                report(
                    number,
                    "`unsafe` without a `// SAFETY:` comment before it".to_owned(),
                );
            }
        }
    }
    findings
}

/// Files that only tests compile need no header.
fn needs_header(path: &str) -> bool {
    !(path.ends_with("/tests.rs") || path.contains("/tests/") && path.matches('/').count() > 2)
}

/// Whether an attribute `name(…)` begins on this line.
fn attribute(code: &str, name: &str) -> bool {
    ["#[", "#!["]
        .iter()
        .any(|start| code.contains(&format!("{start}{name}(")))
        || code.contains("cfg_attr(") && has_word(code, &format!("{name}("))
}

/// The code from line `number` to the end of the attribute that begins there.
fn attribute_text(source: &Source, number: usize) -> String {
    let mut found = String::new();
    for line in &source.lines[number - 1..] {
        found += &line.code;
        if line.code.contains(")]") {
            break;
        }
    }
    found
}

/// Whether `unsafe` on this line begins a block or an implementation, not a function or a trait.
fn is_unsafe_block(source: &Source, number: usize) -> bool {
    let code = &source.lines[number - 1].code;
    let Some(at) = find_word(code, "unsafe") else {
        return false;
    };
    let rest = code[at + "unsafe".len()..].trim_start();
    let next = || {
        source
            .lines
            .get(number)
            .map_or("", |line| line.code.trim_start())
    };
    let rest = if rest.is_empty() { next() } else { rest };
    rest.starts_with('{') || rest.starts_with("impl")
}

/// Whether a `SAFETY:` comment stands on the line or before its statement.
fn has_safety(source: &Source, number: usize) -> bool {
    let before = source.lines[..number - 1].iter().rev();
    let says = |line: &Line| line.comment.contains("SAFETY:");
    if says(&source.lines[number - 1]) {
        return true;
    }
    for line in before {
        if says(line) {
            return true;
        }
        let code = line.code.trim();
        let is_comment = code.is_empty() && !line.comment.trim().is_empty();
        let goes_on = !code.is_empty() && !code.ends_with([';', '{', '}']);
        if !is_comment && !goes_on {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, content: &str) -> Vec<String> {
        let source = Source::new(path, content);
        check(
            &source,
            &["dflash-cli/src/main".to_owned(), "xtask/src".to_owned()],
        )
        .iter()
        .map(|finding| finding.to_string().replacen(&format!("{path}:"), "", 1))
        .collect()
    }

    fn in_library(line: &str) -> Vec<String> {
        at("dflash-core/src/a.rs", &format!("//! A.\n{line}\n"))
    }

    fn one(line: &str, part: &str) {
        let found = in_library(line);
        assert!(
            found.len() == 1 && found[0].starts_with("2: ") && found[0].contains(part),
            "{line}: {found:?}"
        );
    }

    fn none(line: &str) {
        assert_eq!(in_library(line), [""; 0], "{line}");
    }

    #[test]
    fn size_and_header() {
        let lines = |count: usize| format!("//! A.\n{}", "a;\n".repeat(count - 1));
        assert!(at("a/src/a.rs", &lines(TOO_LONG)).is_empty());
        assert!(at("a/src/a.rs", &lines(TOO_LONG + 1))[0].contains("601 lines"));
        let files = |count| Files::from([("a.rs".to_owned(), lines(count).into_bytes())]);
        assert!(long_files(&files(LONG)).is_empty());
        assert_eq!(long_files(&files(LONG + 1)), [("a.rs", LONG + 1)]);
        assert!(long_files(&files(TOO_LONG + 1)).is_empty());
        assert!(at("a/src/a.rs", "use b;\n")[0].contains("header"));
        assert!(at("a/src/a/tests.rs", "use b;\n").is_empty());
        assert!(at("a/tests/a/b.rs", "use b;\n").is_empty());
        assert!(at("a/tests/a.rs", "use b;\n")[0].contains("header"));
    }

    #[test]
    fn printing() {
        one("println!(\"a\");", "in a library");
        one("std::io::stderr().lock()", "in a library");
        none("// println!");
        none("/// println!(\"a\");");
        none("let a = \"print!\";");
        none("#[cfg(test)]\nfn f() { eprintln!() }");
        assert!(at("dflash-cli/src/main.rs", "//! A.\nprintln!()\n").is_empty());
        assert!(at("dflash-cli/examples/a.rs", "//! A.\nprintln!()\n").is_empty());
        assert!(at("xtask/src/a.rs", "//! A.\nprintln!()\n").is_empty());
        assert!(at("a/build.rs", "//! A.\nprintln!()\n").is_empty());
        assert_eq!(
            at("dflash-cli/src/load.rs", "//! A.\nprintln!()\n").len(),
            1
        );
    }

    #[test]
    fn modules_of_the_binary_may_print() {
        let sources = [
            Source::new(
                "dflash-cli/src/main.rs",
                "//! A.\nmod output;\nmod shared;\n",
            ),
            Source::new("dflash-cli/src/lib.rs", "//! A.\npub mod shared;\n"),
        ];
        assert_eq!(
            printing_modules(&sources),
            ["dflash-cli/src/output", "dflash-cli/src/main", "xtask/src"]
        );
    }

    #[test]
    fn unfinished_code() {
        one("todo!()", "no place");
        one("dbg!(a)", "no place");
        one("#[cfg(test)] fn f() { unimplemented!() }", "no place");
        one(&format!("// {}: later", "TODO"), "finish it");
        none("let todo = 1;");
    }

    #[test]
    fn unwrapping() {
        one("a.unwrap();", "`.unwrap()`");
        none("a.unwrap_or(b);");
        none("/// a.unwrap();");
        none("#[cfg(test)]\nmod tests { fn f() { a.unwrap(); } }");
    }

    #[test]
    fn attributes() {
        one("#[allow(dead_code)]", "use `expect`");
        one("#[allow(dead_code, reason = \"why\")]", "use `expect`");
        one("#![allow(dead_code)]", "use `expect`");
        one("#[cfg_attr(test, allow(dead_code))]", "use `expect`");
        one("#[expect(dead_code)]", "without a reason");
        one(
            "#[cfg(test)] mod a { #[allow(dead_code)] fn f() {} }",
            "without a reason",
        );
        one(
            "macro_rules! a { () => { #[allow(unused_mut)] let b; } }",
            "without a reason",
        );
        none("#[cfg(test)] mod a { #[allow(dead_code, reason = \"why\")] fn f() {} }");
        none("macro_rules! a { () => { #[allow(unused_mut, reason = \"why\")] let b; } }");
        one("#[ignore]", "without a reason");
        none("#[expect(dead_code, reason = \"why\")]");
        none("#[expect(\n    dead_code,\n    reason = \"why\"\n)]");
        none("#[ignore = \"needs a model\"]");
        none("a.expect(\"invariant: b\");");
    }

    #[test]
    fn unsafe_code() {
        one("unsafe { b } // SAFETY: a", "outside");
        none("#![deny(unsafe_code)]");
        let kernel = |content: &str| {
            at(
                "dflash-candle/src/kernels/cpu/a.rs",
                &format!("//! A.\n{content}\n"),
            )
        };
        assert!(kernel("// SAFETY: a\nunsafe { b }").is_empty());
        assert!(kernel("// SAFETY: a\n// and b\nlet c =\n    unsafe { b };").is_empty());
        assert!(kernel("let c = unsafe { b }; // SAFETY: a").is_empty());
        assert!(kernel("unsafe fn f() {}").is_empty());
        assert_eq!(
            kernel("unsafe { b }"),
            ["2: `unsafe` without a `// SAFETY:` comment before it"]
        );
        assert_eq!(kernel("// SAFETY: a\nd;\nunsafe { b }").len(), 1);
        assert_eq!(kernel("// SAFETY: a\n\nunsafe impl Send for A {}").len(), 1);
    }
}
