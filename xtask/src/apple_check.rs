//! Type-checks and lints the code for Apple's machines from Linux.
//!
//! Nothing is linked or run. The compiler is Debian's, unpacked under `target/apple-check` beside
//! metadata of the standard library for Apple's target; `mlx-sys` is the stand-in of `mlx-host`,
//! which only writes bindings here.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::mlx_host;
use crate::shell::{Line, spoken};

/// The folder of everything that is made here.
const PLACE: &str = "target/apple-check";
const TARGET: &str = "aarch64-apple-darwin";
/// What is checked: the macOS defaults of the program, and what only tests switch on. One run, so that each
/// dependency is checked with one set of features only.
const CHECKED: &str = "-p dflash-cli -p dflash-candle -p dflash-mlx \
    --features dflash-candle/metal,dflash-candle/testing,dflash-mlx/testing,dflash-core/text,dflash-core/testing";

/// Makes the compiler unless it is there, and checks.
///
/// # Errors
/// When a program is missing or fails, or the code is wrong.
pub(crate) fn run() -> Result<()> {
    ensure!(
        cfg!(target_os = "linux"),
        "this is for Linux; on a Mac, `cargo clippy` checks the same code"
    );
    let since = Instant::now();
    mlx_host::prepare()?;
    let place = std::env::current_dir()
        .context("no current folder")?
        .join(PLACE);
    if !place.join("ready").is_file() {
        Line::new("bash xtask/apple-check/toolchain.sh")
            .arg(PLACE)
            .run()
            .context("the compiler could not be made: Debian's or Ubuntu's apt-get is needed, with the packages of rustc-web 1.96")?;
    }
    line(&place).run()?;
    println!("apple-check: {}", spoken(since.elapsed()));
    Ok(())
}

fn line(place: &Path) -> Line {
    let program = |name: &str| place.join("bin").join(name).display().to_string();
    Line::new(&program("cargo-clippy"))
        .env("RUSTC", program("rustc"))
        .env("MLX_SYS_CHECK_ONLY", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "0")
        .words("clippy --config")
        .arg(mlx_host::CONFIG)
        // What is compiled are macros and build scripts, which run once.
        .arg("--config")
        .arg(r#"profile.dev.package."*".opt-level=0"#)
        .words(&format!(
            "--locked --all-targets --target {TARGET} --target-dir {PLACE}/build"
        ))
        .words(CHECKED)
        .words("-- -D warnings")
}
