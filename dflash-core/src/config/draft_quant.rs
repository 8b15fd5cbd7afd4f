//! What `--draft-quant` asks for.

use std::fmt;
use std::str::FromStr;

use super::quant::{QuantMode, QuantSpec};
use crate::{Error, Result};

/// How a draft's projections are kept after loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftQuant {
    /// As the files have them (`none`).
    #[default]
    AsStored,
    /// What is best here (`auto`).
    Auto,
    /// Quantized at load.
    Packed(DraftSpec),
}

/// `w{2|4|8}[a{16|32}][:gs{32|64|128}]`: bits of the weights, of the activations, and weights per scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftSpec {
    /// Bits per weight.
    pub bits: u8,
    /// Width of the activations; unsaid: what the chip's table has.
    pub activations: Option<ActivationWidth>,
    /// Consecutive weights of a row that share a scale.
    pub group: usize,
}

/// The `a` of a [`DraftSpec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationWidth {
    /// `a16`: bfloat16. Never float16, which drafts overflow.
    A16,
    /// `a32`: float32.
    A32,
}

/// Weights per scale where the spec does not say.
const DEFAULT_GROUP: usize = 64;

impl DraftSpec {
    /// The format of the quantized matrices.
    pub const fn weights(self) -> QuantSpec {
        QuantSpec {
            mode: QuantMode::Affine,
            bits: self.bits,
            group: self.group,
        }
    }
}

impl FromStr for DraftQuant {
    type Err = Error;

    /// # Errors
    /// [`Error::Request`] that names the part which is not understood.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Self::AsStored),
            "auto" => Ok(Self::Auto),
            _ => spec(text).map(Self::Packed).map_err(|reason| {
                Error::request("draft-quant", format!("`{text}`: {reason}")).with_hint(
                    "`none`, `auto`, or w2, w4 or w8, then a16 or a32 if wanted, then :gs32, :gs64 or :gs128 if wanted (`w4`, `w8a32:gs64`)",
                )
            }),
        }
    }
}

fn spec(text: &str) -> Result<DraftSpec, String> {
    let (widths, group) = match text.split_once(':') {
        Some((widths, group)) => (widths, Some(group)),
        None => (text, None),
    };
    let widths = widths
        .strip_prefix('w')
        .ok_or("expected `none`, `auto`, or bits that begin with `w`")?;
    let (bits, activations) = match widths.split_once('a') {
        Some((bits, activations)) => (bits, Some(activations)),
        None => (widths, None),
    };
    let bits = match bits {
        "2" => 2,
        "4" => 4,
        "8" => 8,
        other => return Err(format!("weights of `{other}` bits, expected 2, 4 or 8")),
    };
    let activations = match activations {
        None => None,
        Some("16") => Some(ActivationWidth::A16),
        Some("32") => Some(ActivationWidth::A32),
        Some(other) => {
            return Err(format!(
                "activations of `{other}` bits, expected 16 (bfloat16) or 32"
            ));
        }
    };
    let group = match group {
        None => DEFAULT_GROUP,
        Some("gs32") => 32,
        Some("gs64") => 64,
        Some("gs128") => 128,
        Some(other) => return Err(format!("`{other}`, expected gs32, gs64 or gs128")),
    };
    Ok(DraftSpec {
        bits,
        activations,
        group,
    })
}

impl fmt::Display for DraftSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activations = match self.activations {
            None => "",
            Some(ActivationWidth::A16) => "a16",
            Some(ActivationWidth::A32) => "a32",
        };
        write!(f, "w{}{activations}:gs{}", self.bits, self.group)
    }
}

impl fmt::Display for DraftQuant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsStored => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Packed(spec) => spec.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every spec that exists, as it is written and as it is printed.
    #[test]
    fn every_spec_is_read_and_printed() {
        let mut count = 0;
        for bits in [2u8, 4, 8] {
            for (a, activations) in [
                ("", None),
                ("a16", Some(ActivationWidth::A16)),
                ("a32", Some(ActivationWidth::A32)),
            ] {
                for (gs, group) in [("", 64), (":gs32", 32), (":gs64", 64), (":gs128", 128)] {
                    let read: DraftQuant = format!("w{bits}{a}{gs}").parse().expect("a spec");
                    let expected = DraftSpec {
                        bits,
                        activations,
                        group,
                    };
                    assert_eq!(read, DraftQuant::Packed(expected));
                    assert_eq!(read.to_string(), format!("w{bits}{a}:gs{group}"));
                    assert_eq!(read.to_string().parse().ok(), Some(read));
                    count += 1;
                }
            }
        }
        assert_eq!(count, 36);
        assert_eq!("none".parse().ok(), Some(DraftQuant::AsStored));
        assert_eq!("auto".parse().ok(), Some(DraftQuant::Auto));
        assert_eq!(DraftQuant::default().to_string(), "none");
    }

    #[test]
    fn anything_else_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "`w`"),
            ("4", "`w`"),
            ("q4", "`w`"),
            ("W4", "`w`"),
            ("w", "``"),
            ("w3", "`3`"),
            ("w16", "`16`"),
            ("w4a", "``"),
            ("w4a8", "`8`"),
            ("w4a16f", "`16f`"),
            ("w4a16a32", "`16a32`"),
            ("w4:", "``"),
            ("w4:64", "`64`"),
            ("w4:gs16", "`gs16`"),
            ("w4:gs64:gs64", "`gs64:gs64`"),
            (" w4", "`w`"),
            ("w4 ", "`4 `"),
            ("None", "`w`"),
        ] {
            let error = text.parse::<DraftQuant>().expect_err(text);
            assert!(error.is_usage() && error.hint().is_some(), "{text:?}");
            assert!(error.to_string().contains(part), "{text:?}: {error}");
        }
    }
}
