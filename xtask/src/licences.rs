//! Every dependency can be used under a licence that asks for no more than its notice.

use anyhow::{Result, bail};

use crate::shell::Line;

/// Licences that may be combined with MIT and Apache-2.0 in a program.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Reads the licence of every dependency of the workspace, on all systems.
///
/// # Errors
/// Names the crates without an accepted licence.
pub(crate) fn run() -> Result<()> {
    let line = Line::new("cargo tree --locked --workspace --target all -e no-dev --prefix none")
        .arg("--format={l}|{p}");
    let tree = line.read()?;
    let crates = dependencies(&tree);
    let wrong: Vec<String> = crates
        .iter()
        .filter(|(licence, _)| !accepted(licence))
        .map(|(licence, package)| {
            format!("{package}: `{licence}` is not among the accepted licences")
        })
        .collect();
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    println!(
        "{} crates, each under one of {}",
        crates.len(),
        ACCEPTED.join(", ")
    );
    Ok(())
}

/// Licence and package of every line, once each.
fn dependencies(tree: &str) -> Vec<(&str, &str)> {
    let mut found: Vec<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once('|'))
        .map(|(licence, package)| (licence, package.trim_end_matches("(*)").trim()))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether an SPDX expression leaves a choice that is accepted. `/` is the old spelling of `OR`.
fn accepted(expression: &str) -> bool {
    let expression = strip_parentheses(expression.trim());
    if let Some(parts) = split(expression, " OR ").or_else(|| split(expression, "/")) {
        return parts.iter().any(|part| accepted(part));
    }
    if let Some(parts) = split(expression, " AND ") {
        return parts.iter().all(|part| accepted(part));
    }
    ACCEPTED.contains(&expression)
}

/// Splits at an operator outside parentheses; `None` when it does not occur there.
fn split<'a>(expression: &'a str, operator: &str) -> Option<Vec<&'a str>> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    for (at, sign) in expression.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && at >= start && expression[at..].starts_with(operator) => {
                parts.push(&expression[start..at]);
                start = at + operator.len();
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        return None;
    }
    parts.push(&expression[start..]);
    Some(parts)
}

/// Takes off parentheses that enclose the whole expression.
fn strip_parentheses(expression: &str) -> &str {
    let Some(inner) = expression
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
    else {
        return expression;
    };
    let mut depth = 1_i32;
    for sign in inner.chars() {
        depth += match sign {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return expression;
        }
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_leave_an_accepted_choice() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "GPL-3.0 OR Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "(MIT OR GPL-3.0) AND (Zlib OR LGPL-2.1)",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT)",
        ] {
            assert!(accepted(good), "{good}");
        }
    }

    #[test]
    fn expressions_that_do_not() {
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Apache-2.0) AND GPL-3.0",
            "GPL-2.0 OR LGPL-2.1",
            "MIT WITH something",
        ] {
            assert!(!accepted(bad), "{bad}");
        }
    }

    #[test]
    fn lines_of_the_tree() {
        let tree = "MIT|a v1.0.0\nMIT|a v1.0.0 (*)\n\n|b v2.0.0 (proc-macro)\n";
        assert_eq!(
            dependencies(tree),
            [("", "b v2.0.0 (proc-macro)"), ("MIT", "a v1.0.0")]
        );
    }
}
