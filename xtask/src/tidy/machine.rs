//! Nothing in the repository names the machine it was made on.
//!
//! This file holds the patterns and is therefore the one that is not searched.

use super::Finding;

/// Where the patterns stand.
const HERE: &str = "xtask/src/tidy/machine.rs";

/// Folders of one machine, where a path begins with them.
const FOLDERS: &[&str] = &[
    "/root/",
    "/home/",
    "/Users/",
    "/tmp/",
    "/work/",
    "/workspace/",
    "/mnt/",
    "/media/",
    "/private/",
    "/var/folders/",
    "/opt/homebrew/",
    "C:\\Users\\",
];

/// Hosts that serve packages to one machine's tools; pages of packages for people are fine.
const HOSTS: &[&str] = &[
    "index.crates.io",
    "static.crates.io",
    "files.pythonhosted.org",
    "pypi.org/simple",
    "registry.npmjs.org",
    "proxy.golang.org",
];

/// Parts of a host's name that say that only some can reach it.
const PRIVATE: &[&str] = &["artifactory", "nexus", "mirror", "proxy", "registry."];
const PRIVATE_ENDS: &[&str] = &[".internal", ".corp", ".lan", ".local", ".intra"];
const PRIVATE_STARTS: &[&str] = &["10.", "192.168.", "172.16.", "169.254."];

/// Checks any file; of a weights file, its header.
pub(super) fn check(path: &str, content: &[u8]) -> Vec<Finding> {
    if path == HERE {
        return Vec::new();
    }
    let content = if path.ends_with(".safetensors") {
        header(content)
    } else {
        content
    };
    let Ok(text) = std::str::from_utf8(content) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(folder) = folder(line) {
            findings.push(Finding::new(
                path,
                number,
                format!("`{folder}` is a folder of one machine"),
            ));
        }
        if let Some(host) = host(line) {
            findings.push(Finding::new(
                path,
                number,
                format!("`{host}` is a host of one machine's tools"),
            ));
        }
    }
    findings
}

/// The JSON at the start of a weights file; empty when its length makes no sense.
fn header(content: &[u8]) -> &[u8] {
    let length = content
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let end = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_add(8));
    end.and_then(|end| content.get(8..end)).unwrap_or_default()
}

fn folder(line: &str) -> Option<&'static str> {
    FOLDERS.iter().copied().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            // After a name, `~`, a variable or a dot it is part of a longer, relative path.
            let before = line[..at].chars().next_back();
            !before.is_some_and(|sign| sign.is_alphanumeric() || "_-.~}/*".contains(sign))
        })
    })
}

fn host(line: &str) -> Option<&str> {
    if let Some(host) = HOSTS.iter().find(|host| line.contains(**host)) {
        return Some(host);
    }
    line.split("://").skip(1).find_map(|rest| {
        let host = rest
            .split(|sign: char| !(sign.is_ascii_alphanumeric() || ".-".contains(sign)))
            .next()?;
        let private = PRIVATE.iter().any(|part| host.contains(part))
            || PRIVATE_ENDS.iter().any(|end| host.ends_with(end))
            || PRIVATE_STARTS.iter().any(|start| host.starts_with(start));
        private.then_some(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        check("a.md", line.as_bytes()).len()
    }

    #[test]
    fn folders_of_a_machine() {
        for line in [
            "see /root/x",
            "\"/home/me/models\"",
            "(/tmp/a)",
            "cd /work/tree",
            "path=C:\\Users\\me",
        ] {
            assert_eq!(found(line), 1, "{line}");
        }
        for line in [
            "~/models",
            "https://a.org/home/x",
            "src/tmp/x",
            "$HOME/work/x",
            "/usr/share",
            "${DIR}/tmp/x",
        ] {
            assert_eq!(found(line), 0, "{line}");
        }
    }

    #[test]
    fn hosts_of_tools() {
        for line in [
            "sparse+https://index.crates.io/",
            "http://artifactory.example.com/x",
            "url = \"https://pkg.corp/a\"",
            "http://10.1.2.3:80/",
        ] {
            assert_eq!(found(line), 1, "{line}");
        }
        for line in [
            "https://crates.io/crates/half",
            "http://127.0.0.1:8080",
            "self.internal",
            "https://github.com/a",
        ] {
            assert_eq!(found(line), 0, "{line}");
        }
    }

    #[test]
    fn the_header_of_weights_is_searched() {
        let json = br#"{"__metadata__":{"from":"/root/x"}}"#;
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json);
        file.extend_from_slice(&[0xff; 8]);
        assert_eq!(check("a.safetensors", &file).len(), 1);
        assert!(check("a.safetensors", &[0xff; 16]).is_empty());
        assert!(check("a.safetensors", &[1]).is_empty());
    }
}
