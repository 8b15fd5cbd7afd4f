//! Says what a Mac lacks for building MLX, before MLX's own build fails in the middle of CMake.
//!
//! It stands in this crate because cargo runs it beside the build of `mlx-sys`. A script of
//! `dflash-mlx`, which depends on `mlx-sys` directly, would wait for that build and never speak.

#[path = "build/mac.rs"]
mod mac;

use std::process::{Command, Stdio};

fn main() {
    for path in ["build.rs", "build/mac.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in ["CMAKE", "DEVELOPER_DIR", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // Only a Mac builds MLX from its sources; a check for Apple's target from elsewhere does not.
    let builds_mlx = cfg!(target_os = "macos")
        && std::env::var_os("CARGO_FEATURE_MLX").is_some()
        && std::env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|system| system == "macos");
    if !builds_mlx {
        return;
    }
    let cmake = std::env::var("CMAKE").unwrap_or_else(|_| "cmake".to_owned());
    for line in mac::missing(&cmake, &works) {
        println!("cargo::error={line}");
    }
}

fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
