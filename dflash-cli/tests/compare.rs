//! `dflash compare`, by the real binary, and its library with backends that are wrong.

mod common;

use common::{generate, golden, run};
use dflash::compare::{CompareOptions, compare};
use dflash::{
    BackendFactory, DeviceClass, DeviceInfo, LoadOptions, LoadRequest, Loaded, ModelSource,
    Request, Result, Support, demo,
};
use dflash_core::backend::reference::{self, Reference};
use dflash_core::load::load_on;
use dflash_core::models::ModelInfo;
use dflash_core::testing::row_noise::RowNoise;
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let ran = run(&[&["compare", "--json"], args].concat());
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("one JSON object")
}

#[test]
fn the_demonstration_pair_needs_no_arguments() {
    let ran = run(&["compare"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in [
        "demo with demo:d2",
        "Prompt 3",
        "baseline",
        "tokens per round",
        "layer",
    ] {
        assert!(ran.out.contains(part), "`{part}` is not in {}", ran.out);
    }
    assert!(
        ran.out.ends_with("Tokens and layers agree.\n"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("note: "), "{}", ran.err);
}

#[test]
fn json_holds_layers_tokens_rounds_and_speed() {
    let all = json(&["What is 2 + 3?", "--draft", "demo:d1", "--max-tokens", "20"]);
    let names: Vec<&str> = all["backends"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|b| b["backend"].as_str().expect("a name"))
        .collect();
    assert_eq!(names[0], "reference");
    assert_eq!(names.contains(&"candle"), cfg!(feature = "candle"));
    assert_eq!(
        (&all["agrees"], &all["close"]),
        (&true.into(), &true.into())
    );
    assert_eq!(all["draft"], "demo:d1");
    let own = generate(&["What is 2 + 3?", "--draft", "demo:d1", "--max-tokens", "20"]);
    let results = all["prompts"][0]["results"].as_array().expect("a list");
    assert_eq!(results.len(), names.len());
    for (at, result) in results.iter().enumerate() {
        assert_eq!(result["tokens"], own["tokens"]);
        assert_eq!(result["acceptance_lengths"], own["acceptance_lengths"]);
        assert!(result["generation_tps"].as_f64() > Some(0.0));
        assert!(result["plain_tps"].as_f64() > Some(0.0));
        assert!(result["parts_from_plain"].is_null() && result["parts_from_baseline"].is_null());
        let layers = result["layers"].as_array().expect("a list");
        assert_eq!(layers.len(), if at == 0 { 0 } else { 8 });
        for layer in layers {
            let relative = layer["max_rel"].as_f64().expect("a number");
            assert!(relative > 0.0 && relative < 2e-4, "{layer}");
            assert!(layer["max_abs"].as_f64() > Some(0.0), "{layer}");
        }
        assert_eq!(result["logits"].is_null(), at == 0);
        assert!(result["first_divergence"].is_null());
    }
}

#[test]
fn models_without_a_tokenizer_get_ids() {
    let target = golden("qwen3.5/target");
    let all = json(&["--model", &target, "--draft", "none", "--max-tokens", "8"]);
    assert_eq!(all["prompts"].as_array().map(Vec::len), Some(2));
    assert!(all["prompts"][0]["results"][0]["plain_tps"].is_null());
    assert!(all["draft"].is_null());
    let given = json(&[
        "--model",
        &target,
        "--draft",
        &golden("qwen3.5/d1"),
        "--prompt-ids",
        "3,1,4",
        "--prompt-ids",
        "5,6",
        "--temperature",
        "1",
        "--seed",
        "3",
        "--top-k",
        "5",
        "--block-size",
        "4",
        "--max-tokens",
        "12",
        "--ignore-eos",
        "--backends",
        "reference",
    ]);
    let prompts = given["prompts"].as_array().expect("a list");
    assert_eq!(prompts[0]["prompt_tokens"], 3);
    assert_eq!(prompts[1]["prompt_tokens"], 2);
    let tokens = prompts[0]["results"][0]["tokens"].as_array().map(Vec::len);
    assert_eq!(tokens, Some(12));
}

#[test]
fn markdown_is_tables() {
    let target = golden("llama3/target");
    let ran = run(&[
        "compare",
        "--markdown",
        "--model",
        &target,
        "--max-tokens",
        "4",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.starts_with("## ") && ran.out.contains("\n### Prompt 1"),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("\n|---|---:|") && ran.out.contains("| reference | cpu | f32 | exact |")
    );
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let cases: &[(&[&str], &str, &[&str])] = &[
        (
            &["--backends", "nonesuch"],
            "E-UNAVAILABLE",
            &["`nonesuch`", "available: auto", "reference"],
        ),
        (
            &["--backends", "reference,reference"],
            "E-REQUEST",
            &["given twice"],
        ),
        (
            &["--backend", "reference"],
            "E-REQUEST",
            &["--backends reference"],
        ),
        (
            &["--backends", "reference", "--device", "gpu"],
            "E-UNAVAILABLE",
            &["`gpu`"],
        ),
        (
            &["--backends", "reference", "--dtype", "bf16"],
            "E-REQUEST",
            &["bf16"],
        ),
        (&["--trace", "x"], "E-REQUEST", &["generate --trace"]),
        (&["--max-tokens", "0"], "E-REQUEST", &["max-tokens"]),
        (&["--block-size", "9"], "E-REQUEST", &["block-size"]),
        (&[""], "E-REQUEST", &["empty"]),
        (&["--prompt-ids", "1,99999"], "E-REQUEST", &["vocabulary"]),
        (
            &["--require-draft", "--draft", "none"],
            "E-REQUEST",
            &["require-draft"],
        ),
        (&["--json", "--markdown"], "E-USAGE", &["--markdown"]),
        (
            &["--model", "no-such-folder"],
            "E-NOT-FOUND",
            &["no-such-folder"],
        ),
    ];
    for (args, code, parts) in cases {
        let ran = run(&[&["compare"], *args].concat());
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (2, ""),
            "{args:?}: {}",
            ran.err
        );
        assert!(
            ran.err.contains(&format!("error[{code}]: ")),
            "{args:?}: {}",
            ran.err
        );
        assert!(ran.err.contains("hint: "), "{args:?}: {}", ran.err);
        for part in *parts {
            assert!(
                ran.err.contains(part),
                "{args:?}: `{part}` is not in {}",
                ran.err
            );
        }
    }
}

/// The reference backend with row noise.
#[derive(Debug)]
struct Noisy {
    relative: f32,
    claims_exact: bool,
}

impl BackendFactory for Noisy {
    fn name(&self) -> &'static str {
        "row-noise"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            class: DeviceClass::Cpu,
            name: "cpu".into(),
        }]
    }

    fn supports(&self, _model: &ModelInfo) -> Support {
        Support::Native
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        let backend = RowNoise::new(&Reference::new(), self.relative);
        if self.claims_exact {
            load_on(&backend.claiming_exact(), 1, request)
        } else {
            load_on(&backend, 1, request)
        }
    }
}

fn against_noise(relative: f32, claims_exact: bool) -> dflash::compare::Comparison {
    let all: [Box<dyn BackendFactory>; 2] = [
        Box::new(Noisy {
            relative,
            claims_exact,
        }),
        reference::factory(),
    ];
    let mut load = LoadOptions::new(ModelSource::Embedded(&demo::TARGET));
    load.draft = Some(ModelSource::Embedded(&demo::D2));
    let request = |prompt: &[u32]| Request {
        prompt: prompt.to_vec(),
        max_tokens: 24,
        ..Request::default()
    };
    let options = CompareOptions {
        load,
        backends: Vec::new(),
        requests: [&[1, 40, 7, 300][..], &[9, 9, 2, 77, 500, 31]]
            .map(request)
            .into(),
        ignore_end: true,
    };
    let mut loaded = Vec::new();
    let found =
        compare(&all, &options, &mut |report| loaded.push(report.backend)).expect("it runs");
    assert_eq!(loaded, ["reference", "row-noise"]);
    found
}

#[test]
fn noise_within_the_level_agrees_and_a_false_claim_does_not() {
    let small = against_noise(1e-6, false);
    assert!(small.is_close());
    assert!(small.sides[1].report.row_rounding.is_some_and(|r| r > 0.0));

    let large = against_noise(0.1, true);
    assert!(!large.agrees() && !large.is_close());
    let noisy = large.results.iter().map(|row| &row[1]);
    let owns: Vec<_> = noisy
        .clone()
        .filter_map(|o| o.own_parting.as_ref())
        .collect();
    assert!(
        owns.iter()
            .any(|p| !p.allowed && p.reason.contains("exact level")),
        "{owns:?}"
    );
    assert!(noisy.clone().all(|o| o.first_divergence.is_some()));
    assert!(large.results.iter().all(|row| row[0].own_parting.is_none()));
}
