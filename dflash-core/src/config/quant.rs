//! Which modules of a checkpoint are quantized, and how (MLX's `quantization` object).

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::{Section, kind};
use crate::{Error, Result};

/// A family of quantized formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantMode {
    /// `weight = code * scale + bias` per group, codes of 1 to 8 bits.
    Affine,
    /// 4-bit floats with a power-of-two scale per 32.
    Mxfp4,
    /// 8-bit floats with a power-of-two scale per 32.
    Mxfp8,
    /// 4-bit floats with an 8-bit float scale per 16.
    Nvfp4,
}

impl QuantMode {
    /// The name used in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Bits and group size where a file does not state them.
    const fn defaults(self) -> (u8, usize) {
        match self {
            Self::Affine => (4, 64),
            Self::Mxfp4 => (4, 32),
            Self::Mxfp8 => (8, 32),
            Self::Nvfp4 => (4, 16),
        }
    }
}

/// How one module is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantSpec {
    /// The family of formats.
    pub mode: QuantMode,
    /// Bits per code.
    pub bits: u8,
    /// Consecutive weights of a row that share a scale.
    pub group: usize,
}

/// The quantization of a whole checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantConfig {
    /// What applies to a module that has scales and no entry of its own.
    pub global: QuantSpec,
    modules: BTreeMap<String, Option<QuantSpec>>,
}

impl QuantConfig {
    /// One format for every module that has scales.
    pub const fn uniform(global: QuantSpec) -> Self {
        Self {
            global,
            modules: BTreeMap::new(),
        }
    }

    /// How the module at `path` (as the file names it, without `.weight`) is quantized *if it has
    /// scales*; `None` if the configuration says that it is stored plainly.
    pub fn for_module(&self, path: &str) -> Option<QuantSpec> {
        self.modules.get(path).copied().unwrap_or(Some(self.global))
    }

    /// True if the configuration names the module at `path` as quantized.
    pub fn names_module(&self, path: &str) -> bool {
        matches!(self.modules.get(path), Some(Some(_)))
    }

    /// The modules with an entry of their own.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, Option<QuantSpec>)> {
        self.modules
            .iter()
            .map(|(path, spec)| (path.as_str(), *spec))
    }
}

/// Reads `quantization` and `quantization_config` of the first section that has either.
///
/// MLX writes both with the same content; files of other tools have only the second, with a
/// `quant_method`, and are refused by that name.
pub(super) fn read(
    sections: &[&Section<'_>],
    notes: &mut Vec<String>,
) -> Result<Option<QuantConfig>> {
    for section in sections {
        let (own, hub) = (
            section.section("quantization")?,
            section.section("quantization_config")?,
        );
        match (own, hub) {
            (Some(own), hub) => {
                if hub.is_some_and(|hub| !hub.entries().eq(own.entries())) {
                    notes.push(
                        "`quantization` and `quantization_config` differ; the first is used".into(),
                    );
                }
                return read_mlx(&own).map(Some);
            }
            (None, Some(hub)) => {
                let foreign = hub.text("quant_method")?.or(hub.text("format")?);
                if foreign.is_none() && hub.has("bits") && hub.has("group_size") {
                    return read_mlx(&hub).map(Some);
                }
                let name = foreign.unwrap_or("unnamed");
                return Err(Error::unsupported(format!("the quantization `{name}` of `{}`", section.path().display())).with_hint(
                    "use the unquantized checkpoint, or one quantized in MLX's affine format (a `quantization` object in config.json)",
                ));
            }
            (None, None) => {}
        }
    }
    Ok(None)
}

fn read_mlx(section: &Section<'_>) -> Result<QuantConfig> {
    let global = read_spec(section)?;
    let mut modules = BTreeMap::new();
    for (path, value) in section.entries() {
        if matches!(path, "mode" | "bits" | "group_size") {
            continue;
        }
        let spec = match value {
            Value::Bool(false) => None,
            Value::Bool(true) if path == "quantize_activations" => {
                return Err(Error::unsupported(format!(
                    "`{}` = true",
                    section.dotted(path)
                )));
            }
            Value::Bool(true) => Some(global),
            Value::Object(_) => {
                let inner = section
                    .section(path)?
                    .expect("invariant: the value is an object");
                let spec = read_spec(&inner)?;
                if let Some(key) = inner.unread().first() {
                    return Err(inner.error(key, "expected only `mode`, `bits` and `group_size`"));
                }
                Some(spec)
            }
            other => {
                return Err(section.error(
                    path,
                    format!(
                        "expected an object, true or false per module, found {}",
                        kind(other)
                    ),
                ));
            }
        };
        modules.insert(path.to_owned(), spec);
    }
    Ok(QuantConfig { global, modules })
}

/// A missing mode is affine, also in a module's own object whatever the global mode is.
fn read_spec(section: &Section<'_>) -> Result<QuantSpec> {
    let mode = match section.text("mode")? {
        None | Some("affine") => QuantMode::Affine,
        Some("mxfp4") => QuantMode::Mxfp4,
        Some("mxfp8") => QuantMode::Mxfp8,
        Some("nvfp4") => QuantMode::Nvfp4,
        Some(other) => {
            return Err(Error::unsupported(format!(
                "the quantization mode `{other}` (`{}`)",
                section.dotted("mode")
            ))
            .with_hint("known modes: affine, mxfp4, mxfp8, nvfp4"));
        }
    };
    let (default_bits, default_group) = mode.defaults();
    let bits = section
        .number_in("bits", 1, 8)?
        .unwrap_or(usize::from(default_bits));
    let group = section.size("group_size")?.unwrap_or(default_group);
    let fits = match mode {
        QuantMode::Affine => bits != 7 && matches!(group, 32 | 64 | 128),
        _ => (bits, group) == (usize::from(default_bits), default_group),
    };
    if !fits {
        return Err(section.error(
            "bits",
            format!(
                "{bits} bits in groups of {group} do not exist in mode {}",
                mode.name()
            ),
        ));
    }
    Ok(QuantSpec {
        mode,
        bits: u8::try_from(bits).expect("invariant: at most 8"),
        group,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::json::parse_object;
    use super::*;

    fn parse(json: &str) -> Result<Option<QuantConfig>> {
        let map = parse_object(Path::new("config.json"), json.as_bytes())?;
        read(
            &[&Section::new(Path::new("config.json"), &map)],
            &mut Vec::new(),
        )
    }

    #[test]
    fn overrides_exclusions_and_defaults() {
        let quant = parse(
            r#"{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4", "a.gate": {"bits": 8},
                "b": false, "c": true, "d": {"group_size": 32, "bits": 3}}}"#,
        );
        let quant = quant.expect("valid").expect("present");
        let affine = |bits, group| {
            Some(QuantSpec {
                mode: QuantMode::Affine,
                bits,
                group,
            })
        };
        assert_eq!(
            quant.for_module("a.gate"),
            affine(8, 64),
            "an object without `mode` is affine with affine's defaults"
        );
        assert_eq!(quant.for_module("b"), None);
        assert_eq!(quant.for_module("c"), Some(quant.global));
        assert_eq!(quant.for_module("d"), affine(3, 32));
        assert_eq!(
            quant.for_module("elsewhere"),
            Some(QuantSpec {
                mode: QuantMode::Mxfp4,
                bits: 4,
                group: 32
            })
        );
        assert!(
            quant.names_module("a.gate")
                && !quant.names_module("b")
                && !quant.names_module("elsewhere")
        );
    }

    #[test]
    fn foreign_quantizations_are_refused_by_name() {
        for name in ["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors"] {
            let error = parse(&format!(
                r#"{{"quantization_config": {{"quant_method": "{name}", "bits": 4, "group_size": 128}}}}"#
            ));
            let error = error.expect_err("foreign");
            assert!(
                error.to_string().contains(name) && error.hint().is_some(),
                "{error}"
            );
        }
        assert!(
            parse(r#"{"quantization_config": {"bits": 4, "group_size": 64}}"#)
                .expect("MLX's own")
                .is_some()
        );
        assert!(parse("{}").expect("plain").is_none());
    }

    #[test]
    fn impossible_widths_are_errors() {
        for object in [
            "{\"bits\": 7}",
            "{\"group_size\": 48}",
            "{\"bits\": \"4\"}",
            "{\"mode\": \"q4\"}",
            "{\"mode\": \"nvfp4\", \"bits\": 8}",
            "{\"x\": 3}",
        ] {
            assert!(
                parse(&format!("{{\"quantization\": {object}}}")).is_err(),
                "{object}"
            );
        }
    }
}
