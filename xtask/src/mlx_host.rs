//! Builds and tests the MLX backend on Linux, on MLX's processor build.
//!
//! The stock crate `mlx-sys` builds MLX from source and for Apple only. A stand-in takes its place
//! for these builds: the same crate with a build script that compiles the C interface against the
//! wheel `mlx-cpu`. A `paths` override in a configuration file brings it in, which leaves the lock
//! file as it is. Everything lies under `target/mlx-host`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::shell::{Line, spoken};

/// What `mlx-host` does after it has made sure of the stand-in.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// `test` runs the backend's tests; any other words go to cargo, with the stand-in in place
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// The folder of everything that is made here.
const PLACE: &str = "target/mlx-host";
/// Cargo's configuration that puts the stand-in in place.
pub(crate) const CONFIG: &str = "target/mlx-host/mlx.toml";
/// The version that the C interface in `mlx-sys` is written for, and a library that reads C headers.
const WHEELS: &str = "mlx-cpu==0.32.2 libclang==18.1.1";
/// The version of `mlx-sys` in the lock file.
const MLX_SYS: &str = "0.7.0";
/// The backend's tests.
const TEST: &str = "test --locked --profile ci -p dflash-mlx --features dflash-mlx/host,dflash-mlx/testing,dflash-core/text";

/// Prepares the stand-in; then builds the program, or tests the backend, or hands over to cargo.
///
/// # Errors
/// When a program is missing or fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let since = Instant::now();
    prepare()?;
    match options.words.as_slice() {
        [] => build()?,
        [first, rest @ ..] if first == "test" => test(rest)?,
        words => with_stand_in(Line::new("cargo"), words).run()?,
    }
    println!("mlx-host: {}", spoken(since.elapsed()));
    Ok(())
}

/// The backend's tests, prepared and run.
///
/// # Errors
/// As [`run`].
pub(crate) fn check() -> Result<()> {
    prepare()?;
    test(&[])
}

fn test(words: &[String]) -> Result<()> {
    with_stand_in(Line::new("cargo"), &[])
        .words(TEST)
        .args(words)
        .run()
}

/// `cargo --config FILE …`; clippy wants the option behind its own name.
fn with_stand_in(line: Line, words: &[String]) -> Line {
    match words {
        [first, rest @ ..] if first == "clippy" => {
            line.arg(first).arg("--config").arg(CONFIG).args(rest)
        }
        words => line.arg("--config").arg(CONFIG).args(words),
    }
}

/// The program with all three backends, which finds MLX beside itself.
fn build() -> Result<()> {
    with_stand_in(Line::new("cargo"), &[])
        .words(
            "rustc --locked --profile with-mlx -p dflash-cli --bin dflash --features mlx-host --",
        )
        .arg("-Clink-arg=-Wl,-rpath,$ORIGIN/blas/mlx/lib:$ORIGIN/pip/mlx/lib")
        .run()?;
    swap_blas(std::env::var_os("MLX_BLAS_LIB").filter(|file| !file.is_empty()))?;
    let program = Path::new(PLACE).join("dflash");
    // Replaced as a whole: the old one may be running.
    let fresh = Path::new(PLACE).join("dflash.new");
    fs::copy("target/with-mlx/dflash", &fresh)
        .with_context(|| format!("cannot copy the program to {PLACE}"))?;
    fs::rename(&fresh, &program).with_context(|| format!("cannot write {}", program.display()))?;
    let version = Line::new(&format!("{} --version", program.display())).read()?;
    println!("{}: {}", program.display(), version.trim());
    Ok(())
}

/// With another BLAS than the wheel's, a second copy of MLX that the program finds first: MLX looks for its BLAS
/// by a path relative to itself.
fn swap_blas(blas: Option<OsString>) -> Result<()> {
    let (wheel, swapped) = (Path::new(PLACE).join("pip"), Path::new(PLACE).join("blas"));
    if swapped.exists() {
        fs::remove_dir_all(&swapped)
            .with_context(|| format!("cannot clear {}", swapped.display()))?;
    }
    let Some(blas) = blas else {
        return Ok(());
    };
    for part in ["mlx/lib", "mlx_cpu.libs"] {
        copy(&wheel.join(part), &swapped.join(part), &|path| {
            path.extension().is_none_or(|e| e != "a")
        })?;
    }
    let libraries = swapped.join("mlx_cpu.libs");
    let mut replaced = 0;
    for entry in
        fs::read_dir(&libraries).with_context(|| format!("cannot read {}", libraries.display()))?
    {
        let path = entry?.path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("libblas"))
        {
            fs::copy(&blas, &path)
                .with_context(|| format!("cannot copy MLX_BLAS_LIB, {}", blas.display()))?;
            replaced += 1;
        }
    }
    ensure!(
        replaced == 1,
        "{replaced} files named libblas* in {}, expected one",
        libraries.display()
    );
    println!("BLAS: {}", blas.display());
    Ok(())
}

/// Makes the stand-in, unless it is there.
///
/// # Errors
/// When a program is missing or fails.
pub(crate) fn prepare() -> Result<()> {
    ensure!(
        cfg!(target_os = "linux"),
        "this is for Linux; on a Mac the stock crates build MLX themselves"
    );
    let place = std::env::current_dir()
        .context("no current folder")?
        .join(PLACE);
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let wheels = place.join("pip");
    if !wheels.join("mlx/lib/libmlx.so").is_file() || !wheels.join("clang/native").is_dir() {
        Line::new("python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action ignore --target")
            .arg(&wheels.display().to_string())
            .words(WHEELS)
            .run()
            .context("the wheels of MLX could not be installed: Python 3 with pip is needed (Debian: python3-pip)")?;
    }
    let stand_in = place.join("mlx-sys");
    let stock = stock(&place)?;
    copy(&stock.join("src"), &stand_in.join("src"), &|p| {
        !["docs", "examples", "python"]
            .iter()
            .any(|d| p.ends_with(Path::new("mlx-c").join(d)))
    })?;
    copy(Path::new("xtask/mlx-host"), &stand_in, &|_| true)?;
    let config = format!(
        "paths = [{:?}]\n[env]\nMLX_WHEEL_DIR = {:?}\nLIBCLANG_PATH = {:?}\n",
        stand_in,
        wheels,
        wheels.join("clang/native")
    );
    write(Path::new(CONFIG), config.as_bytes())
}

/// The sources of the stock crate, as cargo fetches them.
fn stock(place: &Path) -> Result<PathBuf> {
    let fetch = place.join("fetch");
    let manifest = format!(
        "[package]\nname = \"fetch-mlx-sys\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\nmlx-sys = {{ version = \"={MLX_SYS}\", default-features = false }}\n[workspace]\n"
    );
    write(&fetch.join("Cargo.toml"), manifest.as_bytes())?;
    write(&fetch.join("lib.rs"), b"")?;
    let line = Line::new("cargo metadata --format-version 1 --filter-platform x86_64-unknown-linux-gnu --manifest-path")
        .arg(&fetch.join("Cargo.toml").display().to_string());
    let metadata: serde_json::Value =
        serde_json::from_str(&line.read()?).context("cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let found = packages.iter().find(|p| p["name"] == "mlx-sys");
    let manifest = found
        .and_then(|p| p["manifest_path"].as_str())
        .context("cargo did not fetch mlx-sys")?;
    let folder = Path::new(manifest)
        .parent()
        .context("a manifest lies in a folder")?;
    Ok(folder.to_owned())
}

/// Copies a folder's files that `wanted` names; files that are the same stay as they are, so that
/// nothing is compiled again.
fn copy(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|_| wanted(&path)) else {
            continue;
        };
        if path.is_dir() {
            copy(&path, &to.join(name), wanted)?;
        } else {
            write(&to.join(name), &fs::read(&path)?)?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
