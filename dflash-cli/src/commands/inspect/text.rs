//! The description as text: one fact a line, names in a column of their own.

use std::fmt::Write;

use super::document::{Document, Draft, DraftLayer, Kind, Target, TargetLayer};
use crate::commands::words;

/// Lines under construction. Writing to a string cannot fail.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn fact(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name:<15} {value}");
    }
}

pub(super) fn render(document: &Document) -> String {
    let mut lines = Lines::default();
    lines.fact(
        "model",
        format_args!("{} ({})", document.reference, document.role),
    );
    match &document.kind {
        Kind::Target(target) => of_target(&mut lines, document.architecture, target),
        Kind::Draft(draft) => of_draft(&mut lines, document.architecture, draft),
    }
    let quantization = document.quantization.as_ref().map_or("none".into(), |q| {
        let exceptions = if q.exceptions == 0 {
            String::new()
        } else {
            format!(", {} modules otherwise", q.exceptions)
        };
        format!(
            "{} {} bits in groups of {}{exceptions}",
            q.mode, q.bits, q.group
        )
    });
    lines.fact("quantization", quantization);
    let tensors = &document.tensors;
    let formats = tensors
        .formats
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect::<Vec<_>>()
        .join(", ");
    lines.fact(
        "tensors",
        format_args!(
            "{}, {} ({formats})",
            tensors.count,
            words::bytes(tensors.bytes)
        ),
    );
    match &document.tokenizer {
        Some(t) => lines.fact(
            "tokenizer",
            format_args!("{} ids, {} of them special", t.ids, t.special),
        ),
        None => lines.fact("tokenizer", "none"),
    }
    match &document.chat_template {
        Some(t) => {
            let reads = [
                ("a reasoning switch", t.reasoning_switch),
                ("reasoning levels", t.reasoning_levels),
                ("tools", t.tools),
            ];
            let reads: Vec<_> = reads
                .iter()
                .filter(|(_, has)| *has)
                .map(|(name, _)| *name)
                .collect();
            let extra = if reads.is_empty() {
                String::new()
            } else {
                format!(", with {}", reads.join(", "))
            };
            lines.fact(
                "chat template",
                format_args!("{} characters{extra}", t.bytes),
            );
        }
        None => lines.fact("chat template", "none"),
    }
    for memory in &document.memory {
        let recurrent = if memory.recurrent_bytes == 0 {
            String::new()
        } else {
            format!(" + {} recurrent", words::bytes(memory.recurrent_bytes))
        };
        lines.fact(
            "caches",
            format_args!(
                "{} tokens: {}{recurrent}",
                memory.context,
                words::bytes(memory.kv_bytes)
            ),
        );
    }
    if let Kind::Target(target) = &document.kind {
        backends(&mut lines, target);
    }
    for note in &document.notes {
        lines.fact("note", note);
    }
    for tensor in tensors.list.iter().flatten() {
        lines.fact(
            "tensor",
            format_args!(
                "{} {} {:?}, {}",
                tensor.name,
                tensor.dtype,
                tensor.shape,
                words::bytes(tensor.bytes)
            ),
        );
    }
    lines.0
}

fn of_target(lines: &mut Lines, architecture: &str, target: &Target) {
    lines.fact(
        "architecture",
        format_args!("{architecture} (`{}`)", target.model_type),
    );
    lines.fact(
        "sizes",
        format_args!(
            "hidden {}, vocabulary {}, context {}",
            target.hidden_size, target.vocab_size, target.context
        ),
    );
    lines.fact(
        "attention",
        format_args!(
            "{} heads, {} for keys and values, {} features each",
            target.heads, target.kv_heads, target.head_dim
        ),
    );
    lines.fact(
        "rope",
        format_args!("theta {}, {} features", target.rope_theta, target.rope_dims),
    );
    lines.fact("layers", target.layers.len());
    for (layers, layer) in words::runs(&target.layers) {
        lines.fact("", format_args!("{layers}: {}", target_layer(layer)));
    }
    if let Some(experts) = &target.experts {
        let shared = if experts.shared {
            ", and one for all"
        } else {
            ""
        };
        lines.fact(
            "experts",
            format_args!("{} of {} per token{shared}", experts.top_k, experts.count),
        );
    }
    lines.fact("end ids", list(&target.end_ids));
}

fn target_layer(layer: &TargetLayer) -> String {
    let mixer = match (layer.kind, layer.window) {
        ("sliding_attention", Some(window)) => format!("sliding attention, window {window}"),
        ("gated_delta", _) => "gated delta".into(),
        _ => "full attention".into(),
    };
    let trim = match (layer.cache, layer.can_trim) {
        ("recurrent", _) => "recurrent state, cannot be trimmed",
        (_, true) => "keys and values, can be trimmed",
        (_, false) => "keys and values, can be trimmed until the window has moved",
    };
    let experts = if layer.experts { "; experts" } else { "" };
    format!("{mixer} ({trim}){experts}")
}

fn of_draft(lines: &mut Lines, architecture: &str, draft: &Draft) {
    lines.fact("kind", architecture);
    lines.fact(
        "block",
        format_args!(
            "{} rows: the anchor and {} drafts",
            draft.block_size,
            draft.block_size - 1
        ),
    );
    let depth = draft
        .target_layers
        .map_or(String::new(), |n| format!(" of a target of {n} layers"));
    lines.fact("taps", format_args!("{}{depth}", list(&draft.taps)));
    lines.fact("mask token", draft.mask_token_id);
    lines.fact(
        "sizes",
        format_args!(
            "hidden {}, vocabulary {}",
            draft.hidden_size, draft.vocab_size
        ),
    );
    lines.fact(
        "attention",
        format_args!(
            "{} heads, {} for keys and values, {} features each",
            draft.heads, draft.kv_heads, draft.head_dim
        ),
    );
    lines.fact("rope", format_args!("theta {}", draft.rope_theta));
    lines.fact("layers", draft.layers.len());
    for (layers, layer) in words::runs(&draft.layers) {
        lines.fact("", format_args!("{layers}: {}", draft_layer(layer)));
    }
    for (at, m) in draft.modules.iter().enumerate() {
        let formats: Vec<_> = m
            .formats
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let quantized = match (m.quantizable, m.groups.is_empty()) {
            (false, _) => String::new(),
            (true, false) => format!(
                "; `--draft-quant` quantizes them, in groups of {}",
                list(&m.groups)
            ),
            (true, true) => "; `--draft-quant` quantizes those whose rows are whole groups".into(),
        };
        lines.fact(
            if at == 0 { "modules" } else { "" },
            format_args!(
                "{}: {} ({}){quantized}",
                m.kind,
                words::bytes(m.bytes),
                formats.join(", ")
            ),
        );
    }
    if let Some(s) = &draft.selector {
        lines.fact(
            "convolution",
            format_args!("{} taps, groups of {}", s.conv_taps, s.conv_group),
        );
        lines.fact(
            "selector",
            format_args!("rank {}, {} candidates", s.rank, s.candidates),
        );
    }
}

fn draft_layer(layer: &DraftLayer) -> String {
    let context = layer.window.map_or("all context".into(), |window| {
        format!("context within a window of {window}")
    });
    format!(
        "{context}, {} in the block",
        if layer.causal {
            "causal"
        } else {
            "bidirectional"
        }
    )
}

fn backends(lines: &mut Lines, target: &Target) {
    for backend in &target.backends {
        let devices = if backend.devices.is_empty() {
            "no usable device".into()
        } else {
            backend.devices.join(", ")
        };
        let answer = match (backend.support, &backend.reason) {
            ("native", _) => "runs it as it is".into(),
            (support, reason) => format!(
                "{support}: {}",
                reason.as_deref().unwrap_or("no reason was given")
            ),
        };
        lines.fact(
            "backend",
            format_args!("{} ({devices}): {answer}", backend.name),
        );
        for (name, ops) in [
            ("native", &backend.operations.native),
            ("composite", &backend.operations.composite),
        ] {
            if !ops.is_empty() {
                lines.fact("", format_args!("{name}: {}", ops.join(", ")));
            }
        }
    }
    match &target.picked {
        Some(picked) => lines.fact(
            "auto",
            format_args!("{}: {}", picked.backend, picked.reason),
        ),
        None => lines.fact("auto", "no backend here runs it"),
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        "none".into()
    } else {
        items
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }
}
