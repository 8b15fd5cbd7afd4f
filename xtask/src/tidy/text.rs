//! Rules for every text that people edit.

use super::Finding;

/// Words for work that is left over, in comments and documents.
const LEFT_OVER: &[&str] = &["FIXME", "XXX", "TODO", "HACK"];

/// The content of a file that people edit; `None` for data.
pub(super) fn of<'a>(path: &str, content: &'a [u8]) -> Option<&'a str> {
    // Recorded data keeps the bytes that its programs wrote.
    let recorded = path.contains("/tests/") || path.contains("/demo/") || path == "Cargo.lock";
    if recorded && ![".rs", ".md"].iter().any(|end| path.ends_with(end)) {
        return None;
    }
    std::str::from_utf8(content)
        .ok()
        .filter(|text| !text.contains('\0'))
}

/// Checks blanks, ends of lines and words for work that is left over.
pub(super) fn check(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(content.split('\n')) {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::new(path, number, "blanks at the end of the line"));
        }
        // Rust files are read by their own rules, which know a comment from a message.
        if !path.ends_with(".rs")
            && let Some(word) = left_over(line)
        {
            findings.push(Finding::new(
                path,
                number,
                format!("`{word}`: finish it, or say it as a limit"),
            ));
        }
    }
    if !content.is_empty() && !content.ends_with('\n') {
        findings.push(Finding::new(path, 0, "does not end with a newline"));
    }
    if content.ends_with("\n\n") {
        findings.push(Finding::new(path, 0, "ends with empty lines"));
    }
    findings
}

/// The first word for work that is left over.
pub(super) fn left_over(line: &str) -> Option<&'static str> {
    LEFT_OVER
        .iter()
        .copied()
        .find(|word| super::source::has_word(line, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content: &str) -> Vec<String> {
        check("README.md", content)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_clean_text_passes() {
        assert!(found("a\n\nb\n").is_empty());
        assert!(found("").is_empty());
    }

    #[test]
    fn blanks_and_ends() {
        assert_eq!(
            found("a \nb\n"),
            ["README.md:1: blanks at the end of the line"]
        );
        assert_eq!(
            found("a\r\n"),
            ["README.md:1: blanks at the end of the line"]
        );
        assert_eq!(found("a"), ["README.md: does not end with a newline"]);
        assert_eq!(found("a\n\n"), ["README.md: ends with empty lines"]);
    }

    #[test]
    fn work_left_over() {
        assert!(found(&format!("a\n{}: b\n", LEFT_OVER[0]))[0].starts_with("README.md:2:"));
        assert!(found(&format!("mktemp file.{0}{0}\n", LEFT_OVER[1])).is_empty());
    }

    #[test]
    fn data_is_left_alone() {
        assert!(of("dflash-core/tests/nano/d1/config.json", b"{}").is_none());
        assert!(of("Cargo.lock", b"a").is_none());
        assert!(of("Cargo.toml", b"a").is_some());
        assert!(of("dflash-core/tests/readers.rs", b"a").is_some());
        assert!(of("dflash-core/tests/nano/README.md", b"a").is_some());
        assert!(of("a.bin", b"a\0b").is_none());
        assert!(of("a.bin", b"\xff\xfe").is_none());
    }
}
