//! The report as a JSON object. What was not measured is null.

use std::time::Duration;

use dflash::{LoadReport, Report};
use serde::Serialize;

/// The object of `generate --json`; its keys are a contract.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    text: &'a str,
    tokens: &'a [u32],
    finish_reason: &'static str,
    prompt_tokens: usize,
    generation_tokens: usize,
    rounds: usize,
    drafted: usize,
    accepted: usize,
    acceptance_lengths: &'a [usize],
    time_to_first_token_ms: Option<f64>,
    prompt_tps: Option<f64>,
    generation_tps: Option<f64>,
    peak_memory_bytes: Option<u64>,
    backend: &'static str,
    device: &'static str,
    dtype: &'static str,
    block_size: usize,
    draft_requested: bool,
    draft_active: bool,
    draft_inactive_reason: Option<&'a str>,
    seed: u64,
    draft: Option<Draft<'a>>,
    cache: Cache,
    exactness: String,
    near_ties: usize,
    non_finite_drafts: usize,
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct Draft<'a> {
    #[serde(rename = "ref")]
    reference: &'a str,
    kind: &'static str,
    quant: &'a str,
    dtype: &'static str,
    dtype_reason: &'a str,
    context_rows: Option<usize>,
    cache_bytes: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Cache {
    kv_bytes: usize,
    recurrent_bytes: usize,
    rollbacks: usize,
}

impl<'a> Document<'a> {
    pub(super) fn new(report: &'a Report, loaded: &'a LoadReport, notes: &'a [String]) -> Self {
        let memory = report.draft_memory;
        Self {
            text: &report.text,
            tokens: &report.tokens,
            finish_reason: report.finish_reason.name(),
            prompt_tokens: report.prompt_tokens,
            generation_tokens: report.generation_tokens(),
            rounds: report.rounds,
            drafted: report.drafted,
            accepted: report.accepted,
            acceptance_lengths: &report.acceptance_lengths,
            time_to_first_token_ms: report.time_to_first_token.map(milliseconds),
            prompt_tps: report.prompt_tps(),
            generation_tps: report.generation_tps(),
            peak_memory_bytes: peak_memory(),
            backend: loaded.backend,
            device: loaded.device,
            dtype: loaded.dtype.name(),
            block_size: report.block_size,
            draft_requested: report.draft_requested,
            draft_active: report.draft_active,
            draft_inactive_reason: report.draft_inactive_reason.as_deref(),
            seed: report.sampling.seed,
            draft: loaded.draft.as_ref().map(|draft| Draft {
                reference: &draft.reference,
                kind: draft.kind,
                quant: draft.quant.as_deref().unwrap_or("none"),
                dtype: draft.dtype.name(),
                dtype_reason: &draft.dtype_reason,
                context_rows: memory.map(|m| m.rows),
                cache_bytes: memory.map(|m| m.bytes),
            }),
            cache: Cache {
                kv_bytes: report.memory.kv_bytes,
                recurrent_bytes: report.memory.recurrent_bytes,
                rollbacks: report.rollbacks,
            },
            exactness: loaded.exactness.to_string(),
            near_ties: report.near_ties,
            non_finite_drafts: report.non_finite_drafts,
            notes,
        }
    }
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The most memory that the process has held at once, where the system tells.
fn peak_memory() -> Option<u64> {
    peak_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The peak in the text of Linux's `/proc/PID/status`: `VmHWM:    1234 kB`.
fn peak_of(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::peak_of;

    #[test]
    fn peak_memory_is_in_bytes() {
        assert_eq!(
            peak_of("Name:\tdflash\nVmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"),
            Some(2_097_152)
        );
        assert_eq!(peak_of("Name:\tdflash\n"), None);
    }
}
