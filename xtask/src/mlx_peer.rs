//! The MLX backend's speed against the published Python package, on the same MLX library.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;

use crate::mlx_host;
use crate::shell::Line;

/// What is compared, and under which conditions.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A BLAS to use in both in place of the one in MLX's wheel, such as OpenBLAS' libblas.so.3
    #[arg(long)]
    blas: Option<String>,
    /// Words for the script, such as `--dtype float32 --prompts 12 --repeats 3`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// The folder of the packages.
const PLACE: &str = "target/mlx-peer";
/// The package, and the library that both sides compute with.
const PACKAGES: &str = "dflash==0.1.0 mlx-lm==0.31.3 mlx[cpu]==0.32.2";

/// Installs the packages unless they are there, builds our program, and runs both in turns.
///
/// # Errors
/// When a program is missing or fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    mlx_host::run(&mlx_host::Options::default())?;
    let ready = Path::new(PLACE).join("ready");
    if !ready.is_file() {
        Line::new("python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target")
            .arg(PLACE)
            .words(PACKAGES)
            .run()
            .context("the packages could not be installed: Python 3 with pip is needed (Debian: python3-pip)")?;
        std::fs::write(&ready, PACKAGES).context("cannot note that the packages are there")?;
    }
    let line = Line::new("python3 xtask/mlx-peer/speed.py --binary target/mlx-host/dflash --pair dflash-core/tests/nano")
        .args(&options.words)
        .env("PYTHONPATH", PLACE);
    match &options.blas {
        Some(blas) => line.env("LD_PRELOAD", blas),
        None => line,
    }
    .run()
}
