//! Compares a backend with recorded results of independent implementations.
//!
//! A folder holds `target/`, drafts `d*/`, their `*.golden.safetensors` and `meta.json`. Each check
//! returns what differs, so that a positive control can expect a difference.

use std::path::Path;

use super::record::Record;
use crate::backend::Backend;
use crate::config::TargetConfig;
use crate::draft::{Draft, DraftOptions};
use crate::load::{LoadRequest, Loaded, ModelFiles, ModelSource, load_on};
use crate::models::{Context, Target};
use crate::spec::{DraftModel, Request, Step, TargetModel};
use crate::{Error, Result};

/// Largest error allowed, as a fraction of the largest recorded magnitude, for f32 activations: rounding of sums in another order.
pub const F32_TOLERANCE: f32 = 2e-4;

/// The same for bf16 activations.
pub const BF16_TOLERANCE: f32 = 2e-2;

/// The same for hybrid targets that mlx-lm has quantized and run: its normalization of keys and its rounding of routers differ.
pub const QUANTIZED_HYBRID_TOLERANCE: f32 = 2e-2;

/// Logits and greedy tokens of the quantized targets `mlx-4bit` and `mlx-8bit` of a folder, as far as it has them. Returns what differs.
///
/// # Errors
/// If one cannot be loaded, or there is none.
pub fn check_quantized<B: Backend>(backend: &B, folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let present: Vec<&str> = ["mlx-4bit", "mlx-8bit"]
        .into_iter()
        .filter(|name| folder.join(name).is_dir())
        .collect();
    if present.is_empty() {
        return Err(Error::NotFound {
            path: folder.into(),
            reason: "it has no quantized target".into(),
        });
    }
    for name in present {
        let target = folder.join(name);
        let hybrid = TargetConfig::read(&target)?.architecture.is_hybrid();
        let tolerance = if hybrid {
            QUANTIZED_HYBRID_TOLERANCE
        } else {
            F32_TOLERANCE
        };
        let record = folder.join(format!("{name}.golden.safetensors"));
        let differences = check_target(backend, &target, &record, tolerance)?;
        found.extend(differences.into_iter().map(|d| format!("{name}: {d}")));
    }
    Ok(found)
}

/// Logits and layer outputs of a target over the recorded prompt, without its tokens: the measure for half formats, in which
/// near-ties of random weights fall otherwise. Returns what differs.
///
/// # Errors
/// If the folder cannot be loaded.
pub fn check_trace<B: Backend>(
    backend: &B,
    target: &Path,
    record: &Record,
    tolerance: f32,
) -> Result<Vec<String>> {
    let ids = record.ids("input_ids")?;
    let mut found = Vec::new();
    let model = load_target(backend, target)?;
    let (layers, logits) = model.trace(&ids)?;
    for (i, layer) in layers.iter().enumerate() {
        let name = format!("layer_output.{i}");
        if record.has(&name) {
            found.extend(compare(
                &name,
                &backend.read(layer)?,
                &record.floats(&name)?,
                tolerance,
            ));
        }
    }
    found.extend(compare(
        "logits",
        &backend.read(&logits)?,
        &record.floats("logits")?,
        tolerance,
    ));
    Ok(found)
}

/// Logits, layer outputs and greedy tokens of a target, in chunks of 1, 4, 7 and whole. Returns what differs.
///
/// # Errors
/// If the folder cannot be loaded.
pub fn check_target<B: Backend>(
    backend: &B,
    target: &Path,
    record: &Path,
    tolerance: f32,
) -> Result<Vec<String>> {
    let record = Record::read(record)?;
    let mut found = check_trace(backend, target, &record, tolerance)?;
    let ids = record.ids("input_ids")?;
    let greedy = record.ids("greedy")?;
    for chunk in [1, 4, 7, ids.len()] {
        let mut engine = load(backend, target, None)?;
        let report = generate(
            &mut engine,
            &Request {
                prefill_chunk: chunk,
                ..request(&ids, greedy.len())
            },
        )?;
        if report.tokens != greedy {
            found.push(format!(
                "greedy tokens with chunk {chunk}: {}",
                first_difference(&report.tokens, &greedy)
            ));
        }
    }
    Ok(found)
}

/// Context rows, hidden rows, logits, proposals and candidates of a draft's first block. Returns what differs.
///
/// # Errors
/// If a folder cannot be loaded.
pub fn check_draft<B: Backend>(
    backend: &B,
    target: &Path,
    draft: &Path,
    records: (&Path, &Path),
    tolerance: f32,
) -> Result<Vec<String>> {
    let (prompt, record) = (
        Record::read(records.0)?.ids("input_ids")?,
        Record::read(records.1)?,
    );
    let files = ModelFiles::open(&ModelSource::Folder(draft.into()))?;
    let config = files.draft_config()?;
    let mut model = load_target(backend, target)?;
    model.set_taps(&config.target_layer_ids)?;
    let (drafter, _) = Draft::load(
        backend,
        &config,
        &files.checkpoint,
        model.decoder().lend(),
        DraftOptions::default(),
    )?;
    let mut found = Vec::new();
    let mut first = None;
    for chunk in [1, 4, 7, prompt.len()] {
        let (mut state, mut context) = (model.new_state()?, drafter.new_state()?);
        let mut rows = Vec::new();
        for ids in prompt.chunks(chunk) {
            let taps = model.prefill(&mut state, ids)?;
            rows.push(joined(backend, &taps)?);
            drafter.absorb(&mut context, taps, prompt.len())?;
        }
        let name = |what: &str| format!("{what} with chunk {chunk}");
        found.extend(compare(
            &name("target_hidden"),
            &rows.concat(),
            &record.floats("target_hidden")?,
            tolerance,
        ));
        let block = record.ids("block")?;
        let trace = drafter.trace(&context, block[0], block.len())?;
        found.extend(compare(
            &name("draft_hidden"),
            &backend.read(&trace.hidden)?,
            &record.floats("draft_hidden")?,
            tolerance,
        ));
        let logits = backend.read(&trace.logits)?;
        found.extend(compare(
            &name("draft_logits"),
            &logits,
            &record.floats("draft_logits")?,
            tolerance,
        ));
        if record.has("candidates_sorted") {
            let wanted = record.ids("candidates_sorted")?;
            let per_slot = wanted.len() / (block.len() - 1);
            let own: Vec<u32> = logits
                .chunks(logits.len() / block.len())
                .skip(1)
                .flat_map(|row| best_sorted(row, per_slot))
                .collect();
            if own != wanted {
                found.push(format!(
                    "{}: {}",
                    name("candidates"),
                    first_difference(&own, &wanted)
                ));
            }
        }
        let rule = crate::spec::ProposalRule {
            rows: block.len(),
            position: prompt.len(),
            coupling: None,
        };
        let proposed = backend.read_ids(&drafter.propose(&mut context, block[0], &rule)?.ids)?;
        let wanted = record.ids("proposed")?;
        if proposed != wanted {
            found.push(format!(
                "{}: {}",
                name("proposed"),
                first_difference(&proposed, &wanted)
            ));
        }
        // Not only the same tokens: at the exact level the same bits, whatever the chunks.
        if backend.exactness() == crate::backend::Exactness::Exact
            && *first.get_or_insert_with(|| logits.clone()) != logits
        {
            found.push(name("draft logits depend on the chunks"));
        }
    }
    Ok(found)
}

/// Tokens and acceptance lengths of a greedy run with a draft. Returns what differs.
///
/// # Errors
/// If a folder cannot be loaded or the run fails.
pub fn check_run<B: Backend>(
    backend: &B,
    target: &Path,
    draft: &Path,
    run: &RecordedRun<'_>,
) -> Result<Vec<String>> {
    let mut engine = load(backend, target, Some(draft))?;
    let mut found = Vec::new();
    for chunk in [1, 4, 7, 512] {
        let request = Request {
            block_size: Some(run.block),
            prefill_chunk: chunk,
            ..request(run.prompt, run.tokens.len())
        };
        let report = generate(&mut engine, &request)?;
        if report.tokens != run.tokens {
            found.push(format!(
                "tokens at block {}: {}",
                run.block,
                first_difference(&report.tokens, run.tokens)
            ));
        }
        if report.acceptance_lengths != run.acceptance {
            found.push(format!(
                "acceptance at block {}: {:?}, recorded {:?}",
                run.block, report.acceptance_lengths, run.acceptance
            ));
        }
        if report.rounds == 0 || report.drafted == 0 || !report.draft_active {
            found.push(format!(
                "nothing was drafted: {:?}",
                report.draft_inactive_reason
            ));
        }
    }
    Ok(found)
}

/// A recorded greedy run.
#[derive(Debug, Clone, Copy)]
pub struct RecordedRun<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Rows per block.
    pub block: usize,
    /// Tokens.
    pub tokens: &'a [u32],
    /// Tokens per round.
    pub acceptance: &'a [usize],
}

/// Checks everything in a folder: the target and its other packagings, and every draft. Returns what differs, each with its place.
///
/// # Errors
/// If something cannot be loaded.
pub fn check_folder<B: Backend>(backend: &B, folder: &Path, tolerance: f32) -> Result<Vec<String>> {
    let (target, record) = (
        folder.join("target"),
        folder.join("target.golden.safetensors"),
    );
    let mut found = Vec::new();
    let mut add = |place: &str, differences: Vec<String>| {
        found.extend(differences.into_iter().map(|d| format!("{place}: {d}")))
    };
    add(
        "target",
        check_target(backend, &target, &record, tolerance)?,
    );
    let packaged = folder.join("target-vl");
    if packaged.is_dir() {
        add(
            "target-vl",
            check_target(backend, &packaged, &record, tolerance)?,
        );
    }
    let (prompt, greedy) = {
        let r = Record::read(&record)?;
        (r.ids("input_ids")?, r.ids("greedy")?)
    };
    let meta = folder.join("meta.json");
    let text = std::fs::read(&meta).map_err(|source| Error::Io {
        path: meta.clone(),
        source,
    })?;
    let meta: Meta =
        serde_json::from_slice(&text).map_err(|e| Error::config(&meta, "drafts", e.to_string()))?;
    for (name, recorded) in &meta.drafts {
        let unreadable = || {
            Error::config(
                folder.join("meta.json"),
                name.clone(),
                "expected DRAFT/bSIZE",
            )
        };
        let (draft, block) = name.split_once("/b").ok_or_else(unreadable)?;
        let block: usize = block.parse().map_err(|_| unreadable())?;
        let path = folder.join(draft);
        if block == 8 {
            let own = folder.join(format!("{draft}.golden.safetensors"));
            add(
                draft,
                check_draft(backend, &target, &path, (&record, &own), tolerance)?,
            );
        }
        let run = RecordedRun {
            prompt: &prompt,
            block,
            tokens: &greedy,
            acceptance: &recorded.acceptance_lengths,
        };
        add(name, check_run(backend, &target, &path, &run)?);
    }
    Ok(found)
}

#[derive(serde::Deserialize)]
struct Meta {
    drafts: std::collections::BTreeMap<String, MetaRun>,
}

#[derive(serde::Deserialize)]
struct MetaRun {
    acceptance_lengths: Vec<usize>,
}

/// Loads an engine from folders.
///
/// # Errors
/// Whatever loading finds.
pub fn load<B: Backend>(backend: &B, target: &Path, draft: Option<&Path>) -> Result<Loaded> {
    let draft = draft.map(|d| ModelSource::Folder(d.into()));
    load_on(
        backend,
        1,
        &LoadRequest {
            draft,
            ..LoadRequest::new(ModelSource::Folder(target.into()))
        },
    )
}

/// Runs a request to its end.
///
/// # Errors
/// The engine's.
pub fn generate(loaded: &mut Loaded, request: &Request) -> Result<crate::spec::Report> {
    let id = loaded.engine.start(request.clone())?;
    loop {
        if let Step::Finished(report) = loaded.engine.step(id, &mut |_| {})? {
            return Ok(*report);
        }
    }
}

/// A greedy request for a number of tokens, without end tokens.
pub fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        ..Request::default()
    }
}

/// Loads a target alone.
///
/// # Errors
/// Whatever loading finds.
pub fn load_target<B: Backend>(backend: &B, folder: &Path) -> Result<Target<B>> {
    let files = ModelFiles::open(&ModelSource::Folder(folder.into()))?;
    Ok(Target::load(backend, &files.target_config()?, &files.checkpoint)?.0)
}

fn joined<B: Backend>(backend: &B, context: &Context<B>) -> Result<Vec<f32>> {
    backend.read(&backend.concat(&context.taps.iter().collect::<Vec<_>>(), 2)?)
}

/// One message if an array differs from the recorded one by more than a fraction of its largest magnitude.
pub fn compare(what: &str, own: &[f32], recorded: &[f32], tolerance: f32) -> Option<String> {
    if own.len() != recorded.len() {
        return Some(format!(
            "{what}: {} numbers, {} are recorded",
            own.len(),
            recorded.len()
        ));
    }
    let largest = recorded.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = own
        .iter()
        .zip(recorded)
        .map(|(a, b)| (a - b).abs())
        .fold(
            0f32,
            |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) },
        );
    (worst > tolerance * largest).then(|| {
        format!(
            "{what}: off by {:.1e} of the largest magnitude {largest:.2e}",
            worst / largest
        )
    })
}

pub(crate) fn first_difference(own: &[u32], recorded: &[u32]) -> String {
    match own.iter().zip(recorded).position(|(a, b)| a != b) {
        Some(i) => format!("number {i} is {}, recorded {}", own[i], recorded[i]),
        None => format!("{} of them, recorded {}", own.len(), recorded.len()),
    }
}

/// The ids of the `k` largest, ascending.
fn best_sorted(row: &[f32], k: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0u32..).take(row.len()).collect();
    ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    ids.truncate(k);
    ids.sort_unstable();
    ids
}
