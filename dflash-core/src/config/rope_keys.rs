//! Where configurations keep their rope, and which of its keys are understood.

use super::json::{MAX_POSITION, Section};
use super::rope::{RopeConfig, RopeScaling};
use crate::{Error, Result};

/// What the rope keys of a configuration say, before the family's own defaults.
#[derive(Debug)]
pub(super) struct RopeKeys {
    pub(super) theta: Option<f64>,
    pub(super) partial: Option<f64>,
    pub(super) scaling: RopeScaling,
}

/// Keys of a rope object that change nothing for text: multimodal sections have one axis there.
const TEXT_ONLY: &[&str] = &["mrope_section", "mrope_interleaved"];

/// Reads `rope_parameters`, `rope_scaling`, `rope_theta` and `partial_rotary_factor`.
///
/// The nested place wins over the flat one, with a note when they disagree. `max_positions` is
/// the original length of a YaRN rope that does not state one.
pub(super) fn read(
    section: &Section<'_>,
    max_positions: Option<usize>,
    notes: &mut Vec<String>,
) -> Result<RopeKeys> {
    let parameters = section.section("rope_parameters")?;
    let scaling = section.section("rope_scaling")?;
    let nested = [parameters.as_ref(), scaling.as_ref()];

    let theta = first_number(section, nested, "rope_theta", notes)?;
    if let Some(theta) = theta.filter(|t| !(*t > 1.0 && *t <= 1e12)) {
        return Err(section.error(
            "rope_theta",
            format!("expected a number above 1 and at most 1e12, found {theta}"),
        ));
    }
    let partial = first_number(section, nested, "partial_rotary_factor", notes)?;
    if let Some(partial) = partial.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
        return Err(section.error(
            "partial_rotary_factor",
            format!("expected a number above 0 and at most 1, found {partial}"),
        ));
    }

    let mut found: Vec<(String, RopeScaling)> = Vec::new();
    for object in nested.into_iter().flatten() {
        let read = read_scaling(object, max_positions, notes)?;
        if let Some(key) = object.unread().into_iter().find(|k| !TEXT_ONLY.contains(k)) {
            return Err(object.error(key, "a rope of this type has no such key").with_hint(
                "the key may change the positions, so it is not ignored; remove it if it is meaningless",
            ));
        }
        if let Some(scaling) = read {
            found.push((object.dotted(""), scaling));
        }
    }
    if let [(first, a), (second, b)] = found.as_slice()
        && a != b
    {
        notes.push(format!(
            "`{}` and `{}` disagree; the first is used",
            first.trim_end_matches('.'),
            second.trim_end_matches('.')
        ));
    }
    let scaling = found
        .into_iter()
        .next()
        .map_or(RopeScaling::None, |(_, s)| s);
    Ok(RopeKeys {
        theta,
        partial,
        scaling,
    })
}

/// The number in the first place that has it; a later place that disagrees is noted.
fn first_number(
    flat: &Section<'_>,
    nested: [Option<&Section<'_>>; 2],
    key: &str,
    notes: &mut Vec<String>,
) -> Result<Option<f64>> {
    let mut first: Option<(String, f64)> = None;
    for place in nested.into_iter().flatten().chain([flat]) {
        let Some(number) = place.number(key)? else {
            continue;
        };
        match &first {
            None => first = Some((place.dotted(key), number)),
            Some((name, used)) if *used != number => {
                notes.push(format!(
                    "`{name}` is {used} but `{}` is {number}; the first is used",
                    place.dotted(key)
                ));
            }
            Some(_) => {}
        }
    }
    Ok(first.map(|(_, number)| number))
}

/// The type named by a rope object and its parameters; `None` when it names no type.
fn read_scaling(
    object: &Section<'_>,
    max_positions: Option<usize>,
    notes: &mut Vec<String>,
) -> Result<Option<RopeScaling>> {
    let plain = |name: &str| matches!(name, "default" | "none" | "mrope");
    let (a, b) = (object.text("rope_type")?, object.text("type")?);
    if let (Some(a), Some(b)) = (a, b)
        && a != b
        && !(plain(a) && plain(b))
    {
        return Err(object.error(
            "rope_type",
            format!("`{a}` contradicts `type`, which is `{b}`"),
        ));
    }
    let Some(name) = a.or(b) else { return Ok(None) };
    let scaling = match name {
        _ if plain(name) => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: factor(object)?,
        },
        "llama3" => {
            let low_freq_factor = or_default(object, "low_freq_factor", 1.0, notes)?;
            let high_freq_factor = or_default(object, "high_freq_factor", 4.0, notes)?;
            if !(low_freq_factor > 0.0 && high_freq_factor > low_freq_factor) {
                return Err(object.error(
                    "high_freq_factor",
                    format!(
                        "expected more than low_freq_factor ({low_freq_factor}) and that above 0"
                    ),
                ));
            }
            let length = original_length(object)?;
            let original_length = object.required("original_max_position_embeddings", length)?;
            RopeScaling::Llama3 {
                factor: factor(object)?,
                low_freq_factor,
                high_freq_factor,
                original_length,
            }
        }
        "yarn" => read_yarn(object, max_positions, notes)?,
        _ => {
            return Err(Error::unsupported(format!(
                "rope type `{name}` (`{}` in `{}`)",
                object.dotted("rope_type"),
                object.path().display()
            ))
            .with_hint("supported: default, linear, llama3, yarn"));
        }
    };
    Ok(Some(scaling))
}

fn read_yarn(
    object: &Section<'_>,
    max_positions: Option<usize>,
    notes: &mut Vec<String>,
) -> Result<RopeScaling> {
    let factor = factor(object)?;
    let beta_fast = object.number("beta_fast")?.unwrap_or(32.0);
    let beta_slow = object.number("beta_slow")?.unwrap_or(1.0);
    if !(beta_slow > 0.0 && beta_fast >= beta_slow) {
        return Err(object.error(
            "beta_fast",
            format!(
                "expected at least beta_slow ({beta_slow}) and that above 0, found {beta_fast}"
            ),
        ));
    }
    let original_length = match original_length(object)? {
        Some(length) => length,
        None => {
            let key = "original_max_position_embeddings";
            let length = object.required(key, max_positions)?;
            notes.push(format!(
                "`{}` is missing; max_position_embeddings ({length}) stands in",
                object.dotted(key)
            ));
            length
        }
    };
    let truncate = object.boolean("truncate")?.unwrap_or(true);
    let scale = |weight: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * weight * factor.ln() + 1.0
        }
    };
    let positive = |key: &str| -> Result<Option<f64>> {
        match object.number(key)? {
            Some(n) if n < 0.0 => {
                Err(object.error(key, format!("expected a number of at least 0, found {n}")))
            }
            // Zero counts as absent, as in the library that defined the keys.
            n => Ok(n.filter(|n| *n > 0.0)),
        }
    };
    let (mscale, mscale_all_dim) = (positive("mscale")?, positive("mscale_all_dim")?);
    let amplitude = match (object.number("attention_factor")?, mscale, mscale_all_dim) {
        (Some(given), ..) if given > 0.0 => given,
        (Some(given), ..) => {
            return Err(object.error(
                "attention_factor",
                format!("expected a number above 0, found {given}"),
            ));
        }
        (None, Some(a), Some(b)) => scale(a) / scale(b),
        (None, None, None) => scale(1.0),
        (None, ..) => {
            return Err(object.error("mscale", "`mscale` and `mscale_all_dim` must be given together: implementations differ on one alone"));
        }
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_length,
        truncate,
        amplitude,
    })
}

fn factor(object: &Section<'_>) -> Result<f64> {
    let factor = object.required("factor", object.number("factor")?)?;
    if (1.0..=1e6).contains(&factor) {
        Ok(factor)
    } else {
        Err(object.error(
            "factor",
            format!("expected a number from 1 to 1e6, found {factor}"),
        ))
    }
}

fn original_length(object: &Section<'_>) -> Result<Option<usize>> {
    object.number_in("original_max_position_embeddings", 1, MAX_POSITION)
}

fn or_default(
    object: &Section<'_>,
    key: &str,
    default: f64,
    notes: &mut Vec<String>,
) -> Result<f64> {
    let number = object.number(key)?;
    if number.is_none() {
        notes.push(format!(
            "`{}` is missing; the format's default {default} is used",
            object.dotted(key)
        ));
    }
    Ok(number.unwrap_or(default))
}

/// The rope of heads of `head_dim` features of which the part `partial` is rotated.
pub(super) fn rope(
    section: &Section<'_>,
    theta: f64,
    head_dim: usize,
    partial: f64,
    scaling: RopeScaling,
) -> Result<RopeConfig> {
    let dims = (head_dim as f64 * partial) as usize;
    if dims == 0 || !dims.is_multiple_of(2) {
        let reason = format!(
            "{dims} of {head_dim} features would be rotated; expected an even number above 0"
        );
        return Err(section.error(
            if partial < 1.0 {
                "partial_rotary_factor"
            } else {
                "head_dim"
            },
            reason,
        ));
    }
    Ok(RopeConfig {
        theta,
        dims,
        scaling,
    })
}
