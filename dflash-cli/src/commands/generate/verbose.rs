//! `-v` and `-vv`: what was loaded, and a line per round.

use dflash::{LoadReport, Request, Round};
use dflash_core::backend::Implementation;

use super::json::milliseconds;
use crate::commands::words;
use crate::output::Messages;

/// Shows the libraries' own events, from warnings (`-v`) to debugging (`-vv`).
pub(crate) fn subscribe(level: u8) {
    let filter = match level {
        0 => return,
        1 => "warn",
        _ => "warn,dflash=debug,dflash_core=debug,dflash_candle=debug",
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time();
    // Somebody else's subscriber would show them as well.
    let _ = builder.try_init();
}

/// The models, their caches and operations, and what is asked of them.
pub(crate) fn loaded(messages: Messages, report: &LoadReport, request: &Request) {
    let LoadReport {
        backend,
        device,
        backend_reason,
        threads,
        dtype,
        exactness,
        row_rounding,
        ..
    } = report;
    messages.line(&format!(
        "backend     {backend} on {device}, {threads} threads: {backend_reason}"
    ));
    let rounding = row_rounding.map_or(String::new(), |rounding| {
        format!("; rows beside a row move its logits by less than {rounding:.1e}, as measured now")
    });
    messages.line(&format!("exactness   {exactness}{rounding}"));
    messages.line(&format!(
        "target      {}: {}, {} tokens, context {}, {} as stored, {dtype} activations, embedding in `{}`",
        report.target,
        report.architecture,
        report.vocab_size,
        report.context,
        words::bytes(report.weight_bytes),
        report.nest,
    ));
    for (layers, cache) in words::runs(&report.caches) {
        let trim = if cache.can_trim {
            "can be trimmed"
        } else {
            "cannot be trimmed"
        };
        messages.line(&format!(
            "cache       layers {layers}: {}, {trim}",
            words::cache(cache.kind)
        ));
    }
    if let Some(draft) = &report.draft {
        let taps = draft
            .taps
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        messages.line(&format!(
            "draft       {}: {}, block {}, taps {taps}, {} as stored, quantization {}, {} activations ({})",
            draft.reference,
            draft.kind,
            draft.block_size,
            words::bytes(draft.weight_bytes),
            draft.quant.as_deref().unwrap_or("none"),
            draft.dtype,
            draft.dtype_reason,
        ));
        if let Some(packed) = &draft.packed {
            messages.line(&format!(
                "quantized   {} projections of the draft: {} in the file, {} in memory",
                packed.matrices,
                words::bytes(packed.stored_bytes),
                words::bytes(packed.bytes),
            ));
        }
    }
    for (kind, name) in [
        (Implementation::Native, "native"),
        (Implementation::Composite, "composite"),
    ] {
        let ops: Vec<_> = report
            .operations
            .iter()
            .filter(|(_, i)| *i == kind)
            .map(|(op, _)| op.name())
            .collect();
        if !ops.is_empty() {
            messages.line(&format!("operations  {name}: {}", ops.join(", ")));
        }
    }
    messages.line(&format!(
        "request     {} prompt tokens, at most {} more, {:?}",
        request.prompt.len(),
        request.max_tokens,
        request.sampling
    ));
}

/// One round.
pub(super) fn round(messages: Messages, number: usize, round: &Round) {
    let times = round.times;
    let mut line = format!(
        "round {number}: at {}, {} rows, {} of {} drafts accepted, {} tokens; draft {:.2} ms, verify {:.2} ms, commit {:.2} ms, host {:.2} ms",
        round.context,
        round.width,
        round.accepted,
        round.drafted,
        round.produced,
        milliseconds(times.draft),
        milliseconds(times.verify),
        milliseconds(times.commit),
        milliseconds(times.host),
    );
    for note in &round.notes {
        line.push_str("; ");
        line.push_str(note);
    }
    messages.line(&line);
}
