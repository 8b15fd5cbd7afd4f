//! Rules for manifests and the lock file.

use super::{Files, Finding};

const REGISTRY: &str = "\"registry+https://github.com/rust-lang/crates.io-index\"";
/// Keys that members take from the workspace.
const INHERITED: &[&str] = &[
    "version",
    "edition",
    "rust-version",
    "license",
    "repository",
];

/// The workspace's members, in the order of its manifest.
pub(crate) fn members(manifest: &str) -> Vec<&str> {
    let list = manifest
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'));
    let parts = list.map_or("", |(list, _)| list).split(',');
    parts
        .map(|part| part.trim().trim_matches('"'))
        .filter(|part| !part.is_empty())
        .collect()
}

/// Checks the root's manifest, the members' manifests and the lock file.
pub(super) fn check(files: &Files) -> Vec<Finding> {
    let read = |path: &str| {
        files
            .get(path)
            .and_then(|content| std::str::from_utf8(content).ok())
    };
    let Some(root) = read("Cargo.toml") else {
        return vec![Finding::new("Cargo.toml", 0, "is missing")];
    };
    let mut findings = check_root(root);
    for member in members(root) {
        let path = format!("{member}/Cargo.toml");
        match read(&path) {
            Some(manifest) => findings.extend(check_member(&path, manifest)),
            None => findings.push(Finding::new(&path, 0, "is missing")),
        }
    }
    match read("Cargo.lock") {
        Some(lock) => findings.extend(check_lock(lock)),
        None => findings.push(Finding::new(
            "Cargo.lock",
            0,
            "is missing: CI builds what it pins",
        )),
    }
    findings
}

/// Sections of a manifest with their lines: `(section, number, line)`.
fn lines(manifest: &str) -> impl Iterator<Item = (&str, usize, &str)> {
    let mut section = "";
    (1..)
        .zip(manifest.lines())
        .filter_map(move |(number, line)| {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                section = name.0;
                return None;
            }
            Some((section, number, line))
        })
}

fn check_root(manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut comment_before = false;
    // Inside a list or table that goes on over several lines, a line is no dependency of its own.
    let mut open = 0_i32;
    for (section, number, line) in lines(manifest) {
        let line = line.trim();
        if section == "workspace.dependencies"
            && open == 0
            && !line.is_empty()
            && !line.starts_with('#')
        {
            let (name, rest) = line.split_once('=').unwrap_or((line, ""));
            let local = rest.contains("path =");
            let reason = line
                .rsplit_once(" # ")
                .is_some_and(|(_, reason)| !reason.trim().is_empty());
            if !local && !reason && !comment_before {
                let what = format!(
                    "`{}` has no comment that says why it is needed",
                    name.trim()
                );
                findings.push(Finding::new("Cargo.toml", number, what));
            }
        }
        let code = line.split(" # ").next().unwrap_or(line);
        open += brackets(code);
        comment_before = line.starts_with('#');
    }
    findings
}

fn brackets(code: &str) -> i32 {
    code.chars()
        .map(|sign| match sign {
            '[' | '{' => 1,
            ']' | '}' => -1,
            _ => 0,
        })
        .sum()
}

fn check_member(path: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for key in INHERITED {
        let wanted = format!("{key}.workspace = true");
        if !lines(manifest).any(|(section, _, line)| section == "package" && line.trim() == wanted)
        {
            findings.push(Finding::new(
                path,
                0,
                format!("`[package]` lacks `{wanted}`"),
            ));
        }
    }
    if !lines(manifest)
        .any(|(section, _, line)| section == "lints" && line.trim() == "workspace = true")
    {
        findings.push(Finding::new(path, 0, "`[lints]` lacks `workspace = true`"));
    }
    for (section, number, line) in lines(manifest) {
        let line = line.trim();
        let is_dependency =
            section.ends_with("dependencies") && line.contains('=') && !line.starts_with('#');
        if is_dependency && !line.contains("workspace = true") {
            findings.push(Finding::new(
                path,
                number,
                "a version of its own: name it in the workspace's manifest",
            ));
        }
    }
    findings
}

fn check_lock(lock: &str) -> Vec<Finding> {
    let sources = (1..)
        .zip(lock.lines())
        .filter_map(|(number, line)| Some((number, line.strip_prefix("source = ")?)));
    sources
        .filter(|(_, source)| *source != REGISTRY)
        .map(|(number, source)| {
            Finding::new(
                "Cargo.lock",
                number,
                format!("{source} is not crates.io's registry"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = [\"a\", \"b\"]\n\n[workspace.dependencies]\na = { path = \"a\" }\n\
                        x = \"1\" # why\n# why too\ny = { version = \"1\", features = [\n    \"z\",\n] }\n";
    const MEMBER: &str = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n\
                          rust-version.workspace = true\nlicense.workspace = true\nrepository.workspace = true\n\n\
                          [dependencies]\nx.workspace = true\ny = { workspace = true, optional = true }\n\n\
                          [lints]\nworkspace = true\n";

    #[test]
    fn members_are_read() {
        assert_eq!(members(ROOT), ["a", "b"]);
        assert!(members("[workspace]\n").is_empty());
    }

    #[test]
    fn a_dependency_needs_a_reason() {
        assert_eq!(check_root(ROOT), []);
        let found = check_root(&ROOT.replace(" # why\n", "\n"));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "Cargo.toml:6: `x` has no comment that says why it is needed"
        );
    }

    #[test]
    fn a_member_inherits() {
        assert_eq!(check_member("a/Cargo.toml", MEMBER), []);
        assert_eq!(
            check_member(
                "a/Cargo.toml",
                &MEMBER.replace("license.workspace = true", "license = \"MIT\"")
            )
            .len(),
            1
        );
        assert_eq!(
            check_member("a/Cargo.toml", &MEMBER.replace("[lints]\n", "[other]\n")).len(),
            1
        );
        let found = check_member(
            "a/Cargo.toml",
            &MEMBER.replace("x.workspace = true", "x = \"1\""),
        );
        assert_eq!((found.len(), found[0].line), (1, 10));
    }

    #[test]
    fn the_lock_names_one_registry() {
        assert_eq!(
            check_lock(&format!("name = \"a\"\nsource = {REGISTRY}\n")),
            []
        );
        assert_eq!(
            check_lock("source = \"sparse+https://example.org/\"\n")[0].line,
            1
        );
    }

    #[test]
    fn missing_files_are_found() {
        let files = Files::from([("Cargo.toml".to_owned(), ROOT.as_bytes().to_vec())]);
        let missing: Vec<String> = check(&files)
            .into_iter()
            .map(|finding| finding.path)
            .collect();
        assert_eq!(missing, ["a/Cargo.toml", "b/Cargo.toml", "Cargo.lock"]);
    }
}
