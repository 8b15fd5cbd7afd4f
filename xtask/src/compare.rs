//! The backends against each other on the recorded tiny models and on the embedded pair, as one Markdown table.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::shell::Line;

/// Where `cargo xtask mlx-host` leaves a program with all backends.
const WITH_MLX: &str = "target/mlx-host/dflash";
const PROFILE: &str = "target/ci/dflash";
const GOLDEN: &str = "dflash-core/tests/golden";
const TOKENS: &str = "32";

/// What to compare with.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Fail if there is no program with the MLX backend at `target/mlx-host/dflash`
    #[arg(long)]
    mlx: bool,
    /// Compare with this program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// A pair of models as the command line names it.
#[derive(Debug)]
struct Pair {
    title: String,
    args: Vec<String>,
    /// Whether every backend has to run it; the others may leave it out.
    all: bool,
}

/// Runs `dflash compare` on every pair and prints the table.
///
/// # Errors
/// When the program cannot be built, or backends differ by more than the stated exactness.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (program, mlx) = program(options)?;
    let mut table = String::from(HEAD);
    let mut problems = Vec::new();
    for pair in pairs()? {
        let mut line = Line::new(&program).arg("compare").arg("--json");
        if pair.all {
            let backends = if mlx {
                "reference,candle,mlx"
            } else {
                "reference,candle"
            };
            line = line.arg("--backends").arg(backends);
        }
        for arg in &pair.args {
            line = line.arg(arg);
        }
        let line = line.env("DFLASH_SETTINGS", "none");
        let (_, output) = line.answer()?;
        let document = serde_json::from_str(&output);
        let document: Value = document.with_context(|| format!("`{line}` printed no JSON"))?;
        table += &rows(&pair.title, &document)?;
        if let Some(problem) = problem(&document) {
            problems.push(format!("{}: {problem}\n  repeat with: {line}", pair.title));
        }
    }
    println!("{table}");
    ensure!(
        problems.is_empty(),
        "backends differ:\n{}",
        problems.join("\n")
    );
    Ok(())
}

/// The program, and whether it has the MLX backend.
fn program(options: &Options) -> Result<(String, bool)> {
    let with_mlx = Path::new(WITH_MLX).is_file();
    if options.mlx && !with_mlx {
        bail!("there is no {WITH_MLX}; `cargo xtask mlx-host` builds it");
    }
    if let Some(program) = &options.program {
        return Ok((program.display().to_string(), options.mlx));
    }
    if with_mlx {
        return Ok((WITH_MLX.to_owned(), true));
    }
    println!("the MLX backend does not take part: there is no {WITH_MLX}");
    Line::new("cargo build --locked --profile ci -p dflash-cli").run()?;
    Ok((PROFILE.to_owned(), false))
}

fn pairs() -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for draft in ["demo:d1", "demo:d2"] {
        pairs.push(Pair {
            title: format!("demo with {draft}"),
            args: vec!["--draft".into(), draft.into()],
            all: true,
        });
    }
    let listed = std::fs::read_dir(GOLDEN).with_context(|| format!("cannot list {GOLDEN}"))?;
    let mut folders = Vec::new();
    for entry in listed {
        folders.push(entry?.path());
    }
    folders.sort();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let folder = |part: &str| folder.join(part);
        let runs = [
            ("target", "d1"),
            ("target", "d2"),
            ("mlx-4bit", "d1"),
            ("mlx-8bit", "d2"),
        ];
        for (target, draft) in runs {
            if !folder(target).is_dir() {
                continue;
            }
            let text = |part: &str| folder(part).display().to_string();
            let args = ["--model", &text(target), "--draft", &text(draft)];
            pairs.push(Pair {
                title: format!("{name}/{target} with {draft}"),
                args: args
                    .iter()
                    .chain(&["--max-tokens", TOKENS])
                    .map(|a| (*a).to_owned())
                    .collect(),
                all: target == "target",
            });
        }
    }
    ensure!(pairs.len() > 2, "{GOLDEN} holds no models");
    Ok(pairs)
}

const HEAD: &str = "| models | backend | level | layers off by | logits off by | tokens | near-ties | tokens/round | plain tok/s | tok/s |\n\
                    |---|---|---|---:|---:|---|---:|---:|---:|---:|\n";

/// A row per backend: the worst of all prompts, and averages of speed.
fn rows(title: &str, document: &Value) -> Result<String> {
    let prompts = list(&document["prompts"])?;
    let mut text = String::new();
    for (at, side) in list(&document["backends"])?.iter().enumerate() {
        let mut results = Vec::new();
        for prompt in prompts {
            let result = prompt["results"].get(at);
            results.push(result.context("a prompt lacks a backend's result")?);
        }
        let worst = |numbers: Vec<&Value>| {
            let numbers: Vec<f64> = numbers.iter().filter_map(|v| v.as_f64()).collect();
            numbers.iter().copied().reduce(f64::max)
        };
        let layers = results
            .iter()
            .flat_map(|r| r["layers"].as_array().into_iter().flatten());
        let layers = worst(layers.map(|l| &l["max_rel"]).collect());
        let logits = worst(results.iter().map(|r| &r["logits"]["max_rel"]).collect());
        let mean = |key: &str| {
            let numbers: Vec<f64> = results.iter().filter_map(|r| r[key].as_f64()).collect();
            let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            (count > 0).then(|| numbers.iter().sum::<f64>() / f64::from(count))
        };
        let near: u64 = results.iter().filter_map(|r| r["near_ties"].as_u64()).sum();
        let cells = [
            title.to_owned(),
            format!("{} {}", word(&side["backend"]), word(&side["dtype"])),
            word(&side["exactness"]),
            number(layers, |n| format!("{n:.1e}")),
            number(logits, |n| format!("{n:.1e}")),
            tokens(at, &results),
            near.to_string(),
            number(mean("tokens_per_round"), |n| format!("{n:.2}")),
            number(mean("plain_tps"), |n| format!("{n:.0}")),
            number(mean("generation_tps"), |n| format!("{n:.0}")),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    Ok(text)
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("the program's JSON lacks a list")
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

fn number(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

fn tokens(at: usize, results: &[&Value]) -> String {
    let parts = |key: &str| results.iter().filter(|r| !r[key].is_null()).count();
    match (at, parts("parts_from_baseline"), parts("parts_from_plain")) {
        (0, _, 0) => "baseline".into(),
        (_, 0, 0) => "equal".into(),
        (_, other, own) => format!("{other} part from the baseline, {own} from plain decoding"),
    }
}

/// What makes a comparison fail: tokens or layers beyond the stated exactness, or a draft that fell silent.
fn problem(document: &Value) -> Option<String> {
    if document["agrees"] != true {
        return Some("tokens differ beyond the stated exactness".into());
    }
    let prompts = document["prompts"].as_array()?;
    let results = prompts
        .iter()
        .flat_map(|p| p["results"].as_array().into_iter().flatten());
    for result in results {
        let backend = word(&result["backend"]);
        if let Some(place) = result["first_divergence"].as_str() {
            return Some(format!(
                "{backend} is off by more than the tolerance at {place}"
            ));
        }
        if result["draft_active"] != true {
            return Some(format!("{backend} gave the draft up"));
        }
    }
    (document["close"] != true).then(|| "the program says that layers are not close".into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(divergence: Option<&str>, agrees: bool) -> Value {
        let result = |backend: &str, layers: Value, logits: Value| {
            json!({
                "backend": backend, "layers": layers, "logits": logits, "near_ties": 1,
                "tokens_per_round": 2.5, "plain_tps": 100.0, "generation_tps": 200.0, "draft_active": true,
                "parts_from_plain": null, "parts_from_baseline": null,
                "first_divergence": if backend == "candle" { divergence } else { None },
            })
        };
        json!({
            "agrees": agrees, "close": agrees && divergence.is_none(),
            "backends": [
                {"backend": "reference", "dtype": "f32", "exactness": "exact"},
                {"backend": "candle", "dtype": "f32", "exactness": "exact"},
            ],
            "prompts": [{"results": [
                result("reference", json!([]), Value::Null),
                result("candle", json!([{"max_rel": 1e-6}, {"max_rel": 3e-6}]), json!({"max_rel": 2e-6})),
            ]}],
        })
    }

    #[test]
    fn a_row_per_backend() {
        let rows = rows("demo", &document(None, true)).expect("rows");
        let expected = "| demo | reference f32 | exact | – | – | baseline | 1 | 2.50 | 100 | 200 |\n\
                        | demo | candle f32 | exact | 3.0e-6 | 2.0e-6 | equal | 1 | 2.50 | 100 | 200 |\n";
        assert_eq!(rows, expected);
    }

    #[test]
    fn divergences_and_tokens_are_problems() {
        assert_eq!(problem(&document(None, true)), None);
        assert!(
            problem(&document(Some("layer 3"), true))
                .is_some_and(|p| p.contains("candle is off") && p.contains("layer 3"))
        );
        assert!(problem(&document(None, false)).is_some_and(|p| p.contains("tokens differ")));
    }
}
