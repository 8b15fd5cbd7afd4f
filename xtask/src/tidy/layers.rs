//! Which inner layers of `dflash-core` may use which.

use super::Finding;
use super::source::{Source, has_word};

const ROOT: &str = "dflash-core/src";

/// A layer and the only other layers that it may use.
///
/// The loop stands on its own: it knows the traits of models, not the models, and sees of loading
/// the report only. Layers without an entry tie the others together.
const LAYERS: &[(&str, &[&str])] = &[
    ("config", &[]),
    ("checkpoint", &["config"]),
    ("text", &["config"]),
    ("cache", &["backend", "checkpoint", "config"]),
    ("nn", &["backend", "cache", "checkpoint", "config"]),
    ("spec", &["config", "load", "text"]),
    (
        "models",
        &["backend", "cache", "checkpoint", "config", "nn", "spec"],
    ),
    (
        "draft",
        &[
            "backend",
            "cache",
            "checkpoint",
            "config",
            "models",
            "nn",
            "spec",
        ],
    ),
];

/// Layers that no entry may use without naming them.
const ALL: &[&str] = &[
    "backend",
    "cache",
    "checkpoint",
    "config",
    "draft",
    "load",
    "models",
    "nn",
    "spec",
    "testing",
    "text",
];

/// Crates of tensor libraries and of backends, which core never names.
const LIBRARIES: &[&str] = &[
    "candle_core",
    "candle_nn",
    "candle_metal_kernels",
    "mlx_rs",
    "mlx_sys",
    "dflash_candle",
    "dflash_mlx",
];
const NAMES: &[&str] = &["\"candle\"", "\"mlx\""];

/// Checks one file of core; tests may use what they need.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    if !source.is_in(ROOT) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in source.numbered().filter(|(_, line)| !line.test) {
        let named = LIBRARIES.iter().find(|name| has_word(&line.code, name));
        if let Some(name) = named.or_else(|| NAMES.iter().find(|name| line.text.contains(**name))) {
            findings.push(Finding::new(
                &source.path,
                number,
                format!("core names the backend {name}"),
            ));
        }
    }
    let inner = source.path[ROOT.len() + 1..]
        .trim_end_matches(".rs")
        .trim_end_matches("/mod");
    let module: Vec<&str> = inner.split('/').collect();
    let Some((layer, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == module[0]) else {
        return findings;
    };
    for (number, used) in used_layers(source, &module) {
        if used != *layer && !allowed.contains(&used.as_str()) {
            findings.push(Finding::new(
                &source.path,
                number,
                format!("`{layer}` uses `{used}`, a layer above it"),
            ));
        }
    }
    findings
}

/// Layers named in paths from the crate's root, with the lines where they stand.
fn used_layers(source: &Source, module: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in source.numbered().filter(|(_, line)| !line.test) {
        for start in roots(&line.code, module) {
            let rest = source.lines[number - 1].code[start..].to_owned();
            let mut group = rest;
            // A group of imports may go on over the next lines.
            let mut next = number;
            while group.starts_with('{') && closing(&group).is_none() && next < source.lines.len() {
                group.push_str(&source.lines[next].code);
                next += 1;
            }
            found.extend(
                heads(&group)
                    .into_iter()
                    .filter(|head| ALL.contains(&head.as_str()))
                    .map(|head| (number, head)),
            );
        }
    }
    found
}

/// Where paths go on after the crate's root: after `crate::`, or after enough `super::`.
fn roots(code: &str, module: &[&str]) -> Vec<usize> {
    let up = "super::".repeat(module.len());
    let ends = |pattern: &str| -> Vec<usize> {
        code.match_indices(pattern)
            .filter(|(at, _)| {
                !code[..*at]
                    .ends_with(|sign: char| sign.is_alphanumeric() || sign == '_' || sign == ':')
            })
            .map(|(at, _)| at + pattern.len())
            .collect()
    };
    let mut all = ends("crate::");
    all.extend(ends(&up));
    all
}

/// The first names of `a::b` or of `{a::b, c}`.
fn heads(path: &str) -> Vec<String> {
    let name = |part: &str| -> String {
        part.trim_start()
            .chars()
            .take_while(|sign| sign.is_alphanumeric() || *sign == '_')
            .collect()
    };
    let Some(inner) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let inner = &inner[..closing(path).map_or(inner.len(), |end| end - 1)];
    let mut depth = 0_i32;
    let parts = inner.split(|sign| {
        depth += match sign {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        sign == ',' && depth == 0
    });
    parts.map(name).collect()
}

/// Where the brace closes that opens at the start.
fn closing(group: &str) -> Option<usize> {
    let mut depth = 0_i32;
    group.char_indices().find_map(|(at, sign)| {
        depth += match sign {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        (depth == 0).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, content: &str) -> Vec<String> {
        check(&Source::new(&format!("{ROOT}/{path}"), content))
            .iter()
            .map(|finding| finding.what.clone())
            .collect()
    }

    #[test]
    fn the_loop_knows_no_models_and_no_backend() {
        assert_eq!(
            found("spec/round.rs", "use crate::models::Decoder;\n"),
            ["`spec` uses `models`, a layer above it"]
        );
        assert_eq!(
            found("spec/round.rs", "fn f(b: &crate::backend::Op) {}\n").len(),
            1
        );
        assert!(
            found(
                "spec/engine.rs",
                "use crate::load::LoadReport;\nuse crate::spec::accept;\n"
            )
            .is_empty()
        );
        assert!(found("spec/engine.rs", "use crate::{Error, Result};\n").is_empty());
    }

    #[test]
    fn groups_and_relative_paths_are_read() {
        assert_eq!(
            found("nn/a.rs", "use crate::{Result, spec::{A, B}, config::C};\n").len(),
            1
        );
        assert_eq!(
            found("nn/a.rs", "use crate::{\n    Result,\n    models,\n};\n").len(),
            1
        );
        assert_eq!(found("nn/a.rs", "use super::super::spec::A;\n").len(), 1);
        assert_eq!(found("nn/mod.rs", "use super::spec::A;\n").len(), 1);
        assert!(found("nn/a.rs", "use super::spec::A;\n").is_empty());
        assert!(found("nn/a.rs", "use other_crate::spec::A;\n").is_empty());
    }

    #[test]
    fn readers_use_nothing_above_them() {
        assert_eq!(found("config/a.rs", "use crate::checkpoint::A;\n").len(), 1);
        assert!(found("checkpoint/a.rs", "use crate::config::A;\n").is_empty());
        assert_eq!(found("checkpoint/a.rs", "use crate::nn::A;\n").len(), 1);
        assert_eq!(found("cache/a.rs", "use crate::models::A;\n").len(), 1);
    }

    #[test]
    fn comments_and_tests_are_free() {
        assert!(found("spec/a.rs", "//! See crate::models::A.\n").is_empty());
        assert!(
            found(
                "spec/a.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::models::A;\n}\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn core_names_no_backend() {
        assert_eq!(
            found("backend/a.rs", "use candle_core::Tensor;\n"),
            ["core names the backend candle_core"]
        );
        assert_eq!(
            found("load/a.rs", "if name == \"mlx\" {}\n"),
            ["core names the backend \"mlx\""]
        );
        assert!(
            found(
                "load/a.rs",
                "// as mlx_rs does\nlet a = read_mlx(\"MLX's affine format\");\n"
            )
            .is_empty()
        );
        assert!(check(&Source::new("dflash-cli/src/pick.rs", "\"mlx\"\n")).is_empty());
    }
}
