//! Proofs with `cargo tree` that a crate does not depend on what it must not depend on.

use anyhow::{Result, bail};

use crate::shell::Line;

/// A set of features of a package, and what its dependencies may and must contain.
///
/// A name that ends in `*` stands for all names that begin so. `needs` is the control: it shows
/// that the list that was searched is the right one.
struct Proof {
    package: &'static str,
    features: &'static str,
    target: &'static str,
    refuses: &'static [&'static str],
    needs: &'static [&'static str],
}

const BACKENDS: &[&str] = &["candle*", "mlx*", "dflash-candle", "dflash-mlx"];

const PROOFS: &[Proof] = &[
    Proof {
        package: "dflash-core",
        features: "",
        target: "all",
        refuses: &[
            "candle*",
            "mlx*",
            "dflash-mlx",
            "dflash-candle",
            "tokenizers",
            "minijinja*",
            "jiff",
            "clap*",
            "anyhow",
        ],
        needs: &["safetensors"],
    },
    Proof {
        package: "dflash-core",
        features: "--all-features",
        target: "all",
        refuses: BACKENDS,
        needs: &["tokenizers", "minijinja"],
    },
    Proof {
        package: "dflash-candle",
        features: "",
        target: "all",
        refuses: &["mlx*", "dflash-mlx", "minijinja*", "clap*"],
        needs: &["candle-core", "dflash-core"],
    },
    Proof {
        package: "dflash-mlx",
        features: "",
        target: "all",
        refuses: &[
            "candle*",
            "dflash-candle",
            "tokenizers",
            "minijinja*",
            "clap*",
        ],
        needs: &["mlx-rs", "dflash-core"],
    },
    Proof {
        package: "dflash-mlx",
        features: "",
        target: "x86_64-unknown-linux-gnu",
        refuses: &["mlx*"],
        needs: &["dflash-core"],
    },
    Proof {
        package: "dflash-cli",
        features: "",
        target: "x86_64-unknown-linux-gnu",
        refuses: &["mlx*"],
        needs: &["candle-core", "dflash-core"],
    },
    Proof {
        package: "dflash-cli",
        features: "",
        target: "aarch64-apple-darwin",
        refuses: &[],
        needs: &["mlx-rs", "candle-metal-kernels"],
    },
    Proof {
        package: "dflash-cli",
        features: "--no-default-features",
        target: "x86_64-unknown-linux-gnu",
        refuses: &[
            "clap*",
            "ctrlc",
            "indicatif",
            "tracing-subscriber",
            "anyhow",
            "candle*",
            "dflash-candle",
            "mlx*",
        ],
        needs: &["dflash-core"],
    },
];

/// Checks every proof.
///
/// # Errors
/// Names the crates that should not be there, and those that are missing.
pub(crate) fn run() -> Result<()> {
    let mut wrong = Vec::new();
    for proof in PROOFS {
        let line = Line::new(&format!(
            "cargo tree --locked -p {} {} --target {} -e no-dev --prefix none",
            proof.package, proof.features, proof.target
        ))
        .arg("--format={p}");
        let tree = line.read()?;
        let found = names(&tree);
        let faults = proof.faults(&found);
        let verdict = if faults.is_empty() { "ok" } else { "WRONG" };
        println!(
            "{verdict}: {line}: {} crates; wanted: {}; refused: {}",
            found.len(),
            proof.needs.join(", "),
            proof.refuses.join(", ")
        );
        wrong.extend(
            faults
                .into_iter()
                .map(|fault| format!("{} {}: {fault}", proof.package, proof.features)),
        );
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

impl Proof {
    fn faults(&self, found: &[&str]) -> Vec<String> {
        let refused = found
            .iter()
            .filter(|name| self.refuses.iter().any(|pattern| matches(pattern, name)))
            .map(|name| format!("depends on {name}"));
        let missing = self
            .needs
            .iter()
            .filter(|need| !found.contains(need))
            .map(|need| format!("does not depend on {need}, so this list proves nothing"));
        refused.chain(missing).collect()
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// The names of a list that `cargo tree` printed without its lines.
fn names(tree: &str) -> Vec<&str> {
    let mut names: Vec<&str> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "dflash-core v0.1.0\nsafetensors v0.8.0\nserde v1.0.0 (*)\n\nserde v1.0.0\n";
    const PROOF: Proof = Proof {
        package: "p",
        features: "",
        target: "all",
        refuses: &["mlx*", "clap"],
        needs: &["safetensors"],
    };

    #[test]
    fn names_are_listed_once() {
        assert_eq!(names(TREE), ["dflash-core", "safetensors", "serde"]);
    }

    #[test]
    fn a_clean_list_passes() {
        assert!(PROOF.faults(&names(TREE)).is_empty());
        assert!(PROOF.faults(&["safetensors", "clap_lex"]).is_empty());
    }

    #[test]
    fn a_refused_crate_and_an_empty_list_fail() {
        assert_eq!(
            PROOF.faults(&["mlx-sys", "safetensors"]),
            ["depends on mlx-sys"]
        );
        assert_eq!(PROOF.faults(&["clap", "safetensors"]), ["depends on clap"]);
        assert!(PROOF.faults(&[])[0].contains("proves nothing"));
    }
}
