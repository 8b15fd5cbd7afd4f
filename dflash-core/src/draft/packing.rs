//! Quantizing a draft's projections while it is loaded.

use super::modules::DraftModule;
use crate::checkpoint::{Unfit, WeightSource, quantize};
use crate::config::QuantSpec;
use crate::nn::Repack;
use crate::{Error, Result};

/// What quantization at load has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The format.
    pub spec: QuantSpec,
    /// Matrices that were quantized.
    pub matrices: usize,
    /// Their bytes in the file.
    pub stored_bytes: usize,
    /// Their bytes in memory.
    pub bytes: usize,
}

/// Quantizes what [`DraftModule`] says and keeps the rest.
#[derive(Debug)]
pub(super) struct Packing {
    done: Packed,
    /// Projections that stay as stored, with the reason.
    kept: Vec<(String, Unfit)>,
}

impl Packing {
    pub(super) fn new(spec: QuantSpec) -> Self {
        Self {
            done: Packed {
                spec,
                matrices: 0,
                stored_bytes: 0,
                bytes: 0,
            },
            kept: Vec::new(),
        }
    }

    /// What was done, and a note per reason for which projections were kept.
    ///
    /// # Errors
    /// [`Error::Request`] if there is no projection that could be quantized.
    pub(super) fn finish(self) -> Result<(Packed, Vec<String>)> {
        let spec = self.done.spec;
        let format = format!("w{}:gs{}", spec.bits, spec.group);
        let reason = self
            .kept
            .first()
            .map_or(String::new(), |(name, why)| format!(" (`{name}`: {why})"));
        if self.done.matrices == 0 {
            let reason = format!("no matrix of the draft can be kept as {format}{reason}");
            return Err(Error::request("draft-quant", reason)
                .with_hint("use a smaller group (`:gs32`), or `--draft-quant none`"));
        }
        let mut notes = Vec::new();
        let mut rest = self.kept.as_slice();
        let mut reasons: Vec<Unfit> = Vec::new();
        while let Some(((_, why), more)) = rest.split_first() {
            rest = more;
            if reasons.contains(why) {
                continue;
            }
            reasons.push(*why);
            let names: Vec<_> = self
                .kept
                .iter()
                .filter(|(_, other)| other == why)
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            let (first, more) = names.split_at(names.len().min(3));
            let more = if more.is_empty() {
                String::new()
            } else {
                format!(" and {} more", more.len())
            };
            notes.push(format!(
                "kept as stored instead of {format}: {}{more} ({why})",
                first.join(", ")
            ));
        }
        Ok((self.done, notes))
    }
}

impl Repack for Packing {
    fn weight(&mut self, module: &str, source: WeightSource) -> Result<WeightSource> {
        let WeightSource::Plain(matrix) = &source else {
            return Ok(source);
        };
        if !DraftModule::of(module).is_some_and(DraftModule::is_quantized) {
            return Ok(source);
        }
        match quantize(matrix, self.done.spec) {
            Ok(packed) => {
                self.done.matrices += 1;
                self.done.stored_bytes += source.stored_bytes();
                self.done.bytes += packed.stored_bytes();
                Ok(packed)
            }
            Err(why) => {
                self.kept.push((module.to_owned(), why));
                Ok(source)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Bytes, StoredTensor, StoredType};
    use crate::config::QuantMode;

    fn matrix(width: usize, value: f32) -> WeightSource {
        WeightSource::Plain(StoredTensor {
            name: "stored".into(),
            dtype: StoredType::F32,
            shape: vec![2, width],
            bytes: Bytes::copied(&value.to_le_bytes().repeat(2 * width)),
        })
    }

    const SPEC: QuantSpec = QuantSpec {
        mode: QuantMode::Affine,
        bits: 4,
        group: 32,
    };

    #[test]
    fn projections_are_packed_and_what_does_not_fit_is_named() {
        let mut packing = Packing::new(SPEC);
        let mut is_packed = |module: &str, source| {
            let source = packing.weight(module, source).expect("no failure");
            matches!(source, WeightSource::Affine { .. })
        };
        assert!(is_packed("fc", matrix(64, 0.5)));
        assert!(is_packed("layers.0.mlp.up_proj", matrix(32, -1.0)));
        assert!(!is_packed(
            "layers.0.mlp_conv.kernel_projection",
            matrix(64, 0.5)
        ));
        assert!(!is_packed(
            "candidate_selector.hidden_projection",
            matrix(64, 0.5)
        ));
        for layer in 0..5 {
            let module = format!("layers.{layer}.mlp.down_proj");
            assert!(!is_packed(&module, matrix(80, 0.5)));
        }
        assert!(!is_packed(
            "layers.9.self_attn.q_proj",
            matrix(64, f32::NAN)
        ));
        let (done, notes) = packing.finish().expect("some are packed");
        assert_eq!(done.matrices, 2);
        assert_eq!(done.stored_bytes, 2 * (64 + 32) * 4);
        assert_eq!(done.bytes, 2 * (64 + 32) / 2 + 2 * 3 * 8);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].contains("layers.0.mlp.down_proj`, `layers.1") && notes[0].contains("2 more")
        );
        assert!(
            notes[0].contains("80") && notes[0].contains("w4:gs32"),
            "{}",
            notes[0]
        );
        assert!(
            notes[1].contains("layers.9.self_attn.q_proj"),
            "{}",
            notes[1]
        );
    }

    #[test]
    fn a_spec_that_fits_nothing_is_refused() {
        let mut packing = Packing::new(SPEC);
        packing.weight("fc", matrix(80, 0.5)).expect("kept");
        let error = packing.finish().expect_err("nothing was packed");
        assert!(error.is_usage() && error.hint().is_some_and(|h| h.contains("gs32")));
        assert!(error.to_string().contains("`fc`: rows of 80"), "{error}");
    }
}
