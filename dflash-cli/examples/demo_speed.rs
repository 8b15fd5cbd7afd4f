//! Plain decoding against both drafts of the embedded demonstration pair, on the recorded held-out
//! prompts: `cargo run --release -p dflash-cli --example demo_speed [-- THREADS]`.
//!
//! All three run in turn on every prompt in one process, so that a busy machine slows them alike;
//! per prompt the median of several runs counts. Every text is compared with the recorded one.

use std::path::Path;
use std::time::Duration;

use dflash::{LoadOptions, Output, Request, demo, load, stream_generate};

const REPEATS: usize = 5;

/// One way to decode, and what was measured of it.
struct Runner {
    name: &'static str,
    loaded: dflash::Loaded,
    speeds: Vec<f64>,
    rounds: usize,
    produced: usize,
    total: Duration,
    host: Duration,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map(|t| t.parse()).transpose()?;
    let recorded =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../dflash-core/tests/nano/expected.json");
    let recorded: serde_json::Value = serde_json::from_slice(&std::fs::read(recorded)?)?;
    let cases = recorded["cases"].as_array().ok_or("no recorded cases")?;
    let mut runners = Vec::new();
    for (name, draft) in [
        ("plain", None),
        ("demo:d1", Some(&demo::D1)),
        ("demo:d2", Some(&demo::D2)),
    ] {
        let mut options = LoadOptions::new(dflash::ModelSource::Embedded(&demo::TARGET));
        options.draft = draft.map(dflash::ModelSource::Embedded);
        options.threads = threads;
        let loaded = load(&options)?;
        runners.push(Runner {
            name,
            loaded,
            speeds: Vec::new(),
            rounds: 0,
            produced: 0,
            total: Duration::ZERO,
            host: Duration::ZERO,
        });
    }
    for case in cases {
        let ids = |key: &str| -> Vec<u32> {
            let list = case[key].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter()
                .filter_map(|id| u32::try_from(id.as_u64()?).ok())
                .collect()
        };
        let mut speeds = vec![Vec::new(); runners.len()];
        for _ in 0..REPEATS {
            for (runner, speeds) in runners.iter_mut().zip(&mut speeds) {
                let end_ids = runner.loaded.engine.report().end_ids.clone();
                let request = Request {
                    prompt: ids("prompt_ids"),
                    end_ids,
                    max_tokens: 200,
                    ..Request::default()
                };
                for output in stream_generate(runner.loaded.engine.as_mut(), request)? {
                    if let Output::Done(report) = output? {
                        assert_eq!(
                            report.tokens,
                            ids("tokens"),
                            "{} changed a text",
                            runner.name
                        );
                        speeds.extend(report.generation_tps());
                        runner.rounds += report.rounds;
                        runner.produced += report.acceptance_lengths.iter().sum::<usize>();
                        runner.host += report.times.host;
                        runner.total += report.times.draft
                            + report.times.verify
                            + report.times.commit
                            + report.times.host;
                    }
                }
            }
        }
        for (runner, mut speeds) in runners.iter_mut().zip(speeds) {
            runner.speeds.push(median(&mut speeds));
        }
    }
    let plain = runners[0].speeds.clone();
    println!(
        "{} prompts, each the median of {REPEATS} runs; speed-up prompt by prompt",
        cases.len()
    );
    for runner in &mut runners {
        let mut ratios: Vec<f64> = runner
            .speeds
            .iter()
            .zip(&plain)
            .map(|(own, plain)| own / plain)
            .collect();
        let ratio = median(&mut ratios);
        println!(
            "{:8} {:6.0} tok/s  {:.1} tokens/round  speed-up {ratio:.2} ({:.2} to {:.2})  {:.0} µs a round, {:.1} % of it host",
            runner.name,
            median(&mut runner.speeds),
            runner.produced as f64 / runner.rounds as f64,
            ratios[0],
            ratios[ratios.len() - 1],
            1e6 * runner.total.as_secs_f64() / runner.rounds as f64,
            100.0 * runner.host.as_secs_f64() / runner.total.as_secs_f64(),
        );
    }
    Ok(())
}

/// The middle of some numbers, which are sorted.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
