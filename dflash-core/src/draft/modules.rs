//! What the tensors of a draft belong to, and which of them are quantized at load.

use std::fmt;

/// A kind of tensor in a draft's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DraftModule {
    /// `fc`, and the q, k, v, o and MLP matrices of the layers: nearly all of a draft's bytes.
    Projection,
    /// Multipliers of norms.
    Norm,
    /// DFlash 2's convolutions: their kernels, and the projections that make them. They shape every number of a block and
    /// are small.
    Convolution,
    /// The projection of DFlash 2's candidate selector.
    Selector,
    /// The selector's codebooks, of which only a few rows are read per block.
    Codebook,
    /// Additive biases.
    Bias,
}

impl DraftModule {
    /// All of them, in the order that reports use.
    pub const ALL: [Self; 6] = [
        Self::Projection,
        Self::Norm,
        Self::Convolution,
        Self::Selector,
        Self::Codebook,
        Self::Bias,
    ];

    /// Of a tensor or module, by its name in the model or in a file.
    pub fn of(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".weight").unwrap_or(name);
        let mut parts = name.rsplit('.');
        let mut last = parts.next()?;
        // The parts of a quantized matrix belong to it.
        if matches!(last, "scales" | "biases") {
            last = parts.next()?;
        }
        if name.split('.').any(|p| p == "candidate_selector") {
            return Some(if last.ends_with("codebook") {
                Self::Codebook
            } else {
                Self::Selector
            });
        }
        if name
            .split('.')
            .any(|p| p == "attention_conv" || p == "mlp_conv")
        {
            return Some(Self::Convolution);
        }
        match last {
            "fc" | "q_proj" | "k_proj" | "v_proj" | "o_proj" | "gate_proj" | "up_proj"
            | "down_proj" => Some(Self::Projection),
            "bias" => Some(Self::Bias),
            norm if norm == "norm" || norm.ends_with("norm") => Some(Self::Norm),
            _ => None,
        }
    }

    /// Whether quantization at load changes it.
    pub const fn is_quantized(self) -> bool {
        matches!(self, Self::Projection)
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Projection => "projections",
            Self::Norm => "norms",
            Self::Convolution => "convolutions",
            Self::Selector => "selector",
            Self::Codebook => "codebooks",
            Self::Bias => "biases",
        }
    }
}

impl fmt::Display for DraftModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_of_a_draft_has_a_kind() {
        use DraftModule::{Bias, Codebook, Convolution, Norm, Projection, Selector};
        for (name, kind) in [
            ("fc", Some(Projection)),
            ("fc.weight", Some(Projection)),
            ("fc.scales", Some(Projection)),
            ("layers.3.self_attn.q_proj", Some(Projection)),
            ("layers.0.self_attn.o_proj.weight", Some(Projection)),
            ("layers.0.self_attn.o_proj.bias", Some(Bias)),
            ("model.layers.0.mlp.down_proj.biases", Some(Projection)),
            ("layers.0.mlp.gate_proj.weight", Some(Projection)),
            ("layers.0.self_attn.q_norm.weight", Some(Norm)),
            ("layers.0.input_layernorm.weight", Some(Norm)),
            ("hidden_norm.weight", Some(Norm)),
            ("norm.weight", Some(Norm)),
            ("layers.0.attention_conv.base_kernel", Some(Convolution)),
            (
                "layers.0.mlp_conv.kernel_projection.weight",
                Some(Convolution),
            ),
            (
                "candidate_selector.hidden_projection.weight",
                Some(Selector),
            ),
            ("candidate_selector.predecessor_codebook", Some(Codebook)),
            (
                "candidate_selector.successor_codebook.weight",
                Some(Codebook),
            ),
            ("embed_tokens.weight", None),
            ("", None),
        ] {
            assert_eq!(DraftModule::of(name), kind, "{name}");
        }
        let quantized = DraftModule::ALL.into_iter().filter(|m| m.is_quantized());
        assert_eq!(quantized.collect::<Vec<_>>(), [Projection]);
    }
}
