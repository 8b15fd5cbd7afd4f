//! The archive of a release: the program, and on macOS MLX's compiled Metal kernels beside it.
//!
//! Names follow `[package.metadata.binstall]` of the program's manifest, so that `cargo binstall`
//! finds the archive among a release's files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::shell::Line;

/// The folder of everything that is made here.
const PLACE: &str = "target/dist";
const PACKAGE: &str = "dflash-cli";
/// What lies in the archive beside the program.
const PAPERS: &[&str] = &["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// MLX looks for its kernels under this name beside the program.
const METALLIB: &str = "mlx.metallib";

/// Builds the program and packs it for the machine that this runs on.
///
/// # Errors
/// When a program is missing or fails, or the build left no kernels on macOS.
pub(crate) fn run() -> Result<()> {
    let about = Line::new("rustc -vV").read()?;
    let target = about
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc does not name its host")?;
    let name = archive(env!("CARGO_PKG_VERSION"), target);
    let stage = Path::new(PLACE).join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage).with_context(|| format!("cannot clear {}", stage.display()))?;
    }
    fs::create_dir_all(&stage).with_context(|| format!("cannot make {}", stage.display()))?;

    let kernels = std::env::current_dir()
        .context("no current folder")?
        .join(PLACE)
        .join("metal");
    build(cfg!(target_os = "macos"), &kernels.display().to_string()).run()?;
    take("target/release/dflash".as_ref(), &stage.join("dflash"))?;
    if cfg!(target_os = "macos") {
        let metallib = kernels.join(METALLIB);
        ensure!(
            metallib.is_file(),
            "the build left no {}: MLX would find no kernels",
            metallib.display()
        );
        take(&metallib, &stage.join(METALLIB))?;
    }
    for paper in PAPERS {
        take(paper.as_ref(), &stage.join(paper))?;
    }
    Line::new(&format!("{} --version", stage.join("dflash").display())).run()?;
    Line::new(&format!("tar -czf {PLACE}/{name}.tgz -C {PLACE} {name}")).run()
}

/// The name of the archive without its ending, and of the one folder in it.
fn archive(version: &str, target: &str) -> String {
    format!("{PACKAGE}-{target}-v{version}")
}

/// The build; on a Mac with MLX's kernels where they can be taken from.
fn build(mac: bool, kernels: &str) -> Line {
    let line = Line::new("cargo build --locked --release -p").arg(PACKAGE);
    if mac {
        line.env("MLX_RS_METAL_PATH", kernels)
    } else {
        line
    }
}

fn take(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What binstall makes of a template for one system.
    fn filled(template: &str) -> String {
        [
            ("{ name }", PACKAGE),
            ("{ target }", "t"),
            ("{ version }", "1.2.3"),
            ("{ repo }", "R"),
            ("{ bin }", "dflash"),
            ("{ binary-ext }", ""),
            ("{ archive-suffix }", ".tgz"),
        ]
        .iter()
        .fold(template.to_owned(), |text, (key, value)| {
            text.replace(key, value)
        })
    }

    #[test]
    fn binstall_finds_the_archive_and_the_program_in_it() {
        let manifest = include_str!("../../dflash-cli/Cargo.toml");
        let section = manifest
            .split_once("[package.metadata.binstall]\n")
            .expect("the manifest tells binstall")
            .1;
        let value = |key: &str| {
            section
                .lines()
                .take_while(|line| !line.starts_with('['))
                .find_map(|line| line.strip_prefix(&format!("{key} = ")))
                .map(|value| filled(value.trim_matches('"')))
                .expect("the key is there")
        };
        let name = archive("1.2.3", "t");
        assert_eq!(
            value("pkg-url"),
            format!("R/releases/download/v1.2.3/{name}.tgz")
        );
        assert_eq!(value("bin-dir"), format!("{name}/dflash"));
        assert_eq!(value("pkg-fmt"), "tgz");
    }

    #[test]
    fn only_a_mac_asks_for_kernels() {
        let mac = build(true, "K").to_string();
        assert!(mac.starts_with("MLX_RS_METAL_PATH=K cargo build"), "{mac}");
        let linux = build(false, "K").to_string();
        assert_eq!(linux, "cargo build --locked --release -p dflash-cli");
    }
}
