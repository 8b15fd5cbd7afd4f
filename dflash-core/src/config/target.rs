//! `config.json` of a target: which decoder it is, with every number that it computes with.

use std::path::{Path, PathBuf};

use super::draft::says_draft;
use super::generation::GenerationConfig;
use super::json::{MAX_POSITION, Section, parse_object, read_file};
use super::keys::{Kind, unknown_key_notes};
use super::quant::{self, QuantConfig};
use super::rope::RopeConfig;
use super::target_attention::{attention, refuse_foreign_keys};
use super::target_layers::{gated_delta, layers, moe};
use crate::{Error, PairingCheck, Result};

/// The supported decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 2 and 3, and what shares their equations (Mistral without a window).
    Llama,
    /// Qwen3, dense.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Qwen3.5 and later hybrids of gated delta and gated attention layers, dense.
    Qwen35,
    /// The same with experts.
    Qwen35Moe,
}

impl Architecture {
    /// Every supported architecture.
    pub const ALL: [Self; 5] = [
        Self::Llama,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Qwen35,
        Self::Qwen35Moe,
    ];

    /// The `model_type` of its configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen35 => "qwen3_5",
            Self::Qwen35Moe => "qwen3_5_moe",
        }
    }

    /// True for the hybrids with gated delta layers.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen35 | Self::Qwen35Moe)
    }

    fn of(model_type: &str) -> Option<Self> {
        match model_type {
            "llama" | "mistral" => Some(Self::Llama),
            "qwen3" => Some(Self::Qwen3),
            "qwen3_moe" => Some(Self::Qwen3Moe),
            "qwen3_5" | "qwen3_5_text" => Some(Self::Qwen35),
            "qwen3_5_moe" | "qwen3_5_moe_text" => Some(Self::Qwen35Moe),
            _ => None,
        }
    }
}

/// A target's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetConfig {
    /// The file it was read from.
    pub path: PathBuf,
    /// The decoder.
    pub architecture: Architecture,
    /// The `model_type` as written.
    pub model_type: String,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Added to the mean square in every norm with a weight.
    pub rms_norm_eps: f32,
    /// Whether the embedding serves as head; unsaid: iff the checkpoint has no head.
    pub tie_word_embeddings: Option<bool>,
    /// Positions the model was made for.
    pub max_position_embeddings: usize,
    /// One entry per layer, in order.
    pub layers: Vec<LayerConfig>,
    /// The attention layers' shape.
    pub attention: AttentionConfig,
    /// The gated delta layers' shape, in hybrids.
    pub gated_delta: Option<GatedDeltaConfig>,
    /// Width of the dense MLPs; absent if every layer is sparse.
    pub intermediate_size: Option<usize>,
    /// Whether the dense MLPs have biases.
    pub mlp_bias: bool,
    /// The experts of sparse layers.
    pub moe: Option<MoeConfig>,
    /// Tokens that end a text. Empty if no file says so.
    pub eos_token_ids: Vec<u32>,
    /// The token that starts a text, if the model has one.
    pub bos_token_id: Option<u32>,
    /// How the checkpoint is quantized.
    pub quantization: Option<QuantConfig>,
    /// What was ignored, defaulted or contradictory.
    pub notes: Vec<String>,
}

/// One decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerConfig {
    /// What mixes the rows.
    pub mixer: Mixer,
    /// Whether the MLP is a mixture of experts.
    pub sparse: bool,
}

/// How a layer mixes rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Causal attention over everything before.
    Full,
    /// Causal attention over the newest `window` positions, the row's own included.
    Sliding {
        /// Visible positions.
        window: usize,
    },
    /// A gated delta rule with a recurrent state.
    GatedDelta,
}

/// The shape of the attention layers. Scores are scaled by `head_dim^-1/2`.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head `h` reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Whether queries and keys are normed per head before rope.
    pub qk_norm: bool,
    /// Whether q, k, v and o have biases.
    pub bias: bool,
    /// Whether `q_proj` yields a query and a sigmoid gate per head.
    pub output_gate: bool,
    /// The rotary embedding.
    pub rope: RopeConfig,
}

/// The shape of the gated delta layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v and of the state; value head `h` reads key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Features per head of q and k.
    pub key_dim: usize,
    /// Features per head of v.
    pub value_dim: usize,
    /// Taps of the causal convolution, the current row included.
    pub conv_kernel: usize,
}

impl GatedDeltaConfig {
    /// Channels of the convolution: all heads of q, k and v.
    pub const fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// The experts of a sparse layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeConfig {
    /// Routed experts.
    pub experts: usize,
    /// Experts per row.
    pub top_k: usize,
    /// Width of one expert.
    pub intermediate_size: usize,
    /// Whether the chosen experts' weights are divided by their sum.
    pub norm_topk: bool,
    /// Width of the expert that every row passes, if there is one.
    pub shared_intermediate_size: Option<usize>,
}

impl TargetConfig {
    /// Reads `config.json` of a model folder, and the end tokens of its `generation_config.json`.
    ///
    /// # Errors
    /// A file cannot be read, an architecture or a value is not supported, a key is missing or
    /// contradictory, or the folder holds a draft ([`PairingCheck::Role`]).
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let json = read_file(&path)?;
        let mut config = Self::parse(&path, &json)?;
        if let Some(generation) = GenerationConfig::read(folder)? {
            config.apply_generation(&generation);
        }
        Ok(config)
    }

    /// Lets a generation configuration that names end tokens replace this one's.
    pub fn apply_generation(&mut self, generation: &GenerationConfig) {
        if !generation.eos_token_ids.is_empty() {
            self.eos_token_ids.clone_from(&generation.eos_token_ids);
        }
    }

    /// Reads the content of a `config.json`; `path` is for messages.
    ///
    /// # Errors
    /// As [`TargetConfig::read`].
    pub fn parse(path: &Path, json: &[u8]) -> Result<Self> {
        let map = parse_object(path, json)?;
        let outer = Section::new(path, &map);
        if says_draft(&outer) {
            return Err(Error::Pairing {
                check: PairingCheck::Role,
                reason: format!(
                    "`{}` describes a DFlash draft, expected a target",
                    path.display()
                ),
                hint: Some("give the draft as `--draft` and its target as `--model`".into()),
            });
        }
        let nested = outer.section("text_config")?;
        let text = nested.as_ref().unwrap_or(&outer);
        let (architecture, model_type) = architecture(&outer, nested.as_ref())?;
        let mut notes = Vec::new();
        let quantization = quant::read(&[&outer, text], &mut notes)?;

        refuse_foreign_keys(text)?;
        let vocab_size = text.need_size("vocab_size")?;
        let hidden_size = text.need_size("hidden_size")?;
        let eps = text.float("rms_norm_eps", "a number from 0 to 1", |e| {
            (0.0..=1.0).contains(&e)
        })?;
        let positions = text.number_in("max_position_embeddings", 1, MAX_POSITION)?;
        let max_position_embeddings = text.required("max_position_embeddings", positions)?;
        let attention = attention(
            text,
            architecture,
            hidden_size,
            max_position_embeddings,
            &mut notes,
        )?;
        let moe = moe(text, architecture, &mut notes)?;
        let layers = layers(text, architecture, model_type, moe.is_some(), &mut notes)?;
        let gated_delta = if layers.iter().any(|l| l.mixer == Mixer::GatedDelta) {
            Some(gated_delta(text)?)
        } else {
            None
        };
        let mut intermediate_size = text.size("intermediate_size")?;
        if layers.iter().any(|l| !l.sparse) {
            text.required("intermediate_size", intermediate_size)?;
        } else {
            intermediate_size = None;
        }
        let mlp_bias = text.boolean("mlp_bias")?.unwrap_or(false);
        if mlp_bias && architecture != Architecture::Llama {
            return Err(text.refused("mlp_bias", true));
        }

        let config = Self {
            path: path.into(),
            architecture,
            model_type: model_type.to_owned(),
            vocab_size,
            hidden_size,
            rms_norm_eps: text.required("rms_norm_eps", eps)?,
            tie_word_embeddings: tied(&outer, nested.as_ref(), &mut notes)?,
            max_position_embeddings,
            layers,
            attention,
            gated_delta,
            intermediate_size,
            mlp_bias,
            moe,
            eos_token_ids: eos(&outer, text)?,
            bos_token_id: text.token("bos_token_id")?.or(outer.token("bos_token_id")?),
            quantization,
            notes: Vec::new(),
        };
        notes.extend(unknown_key_notes(text, Kind::Target, |_| false));
        if nested.is_some() {
            // The wrapper may repeat what its text part says.
            let repeated = |key: &str| text.has(key) && text.value(key) == outer.value(key);
            notes.extend(unknown_key_notes(&outer, Kind::Target, repeated));
        }
        Ok(Self { notes, ..config })
    }
}

fn architecture<'a>(
    outer: &Section<'a>,
    nested: Option<&Section<'a>>,
) -> Result<(Architecture, &'a str)> {
    let unsupported = |name: &str| {
        let known = Architecture::ALL.map(Architecture::name).join(", ");
        Error::unsupported(format!(
            "the architecture `{name}` of `{}`",
            outer.path().display()
        ))
        .with_hint(format!("supported: {known}"))
    };
    let own = outer.text("model_type")?;
    let inner = nested.map(|s| s.text("model_type")).transpose()?.flatten();
    let name = outer.required("model_type", inner.or(own))?;
    let found = Architecture::of(name).ok_or_else(|| unsupported(name))?;
    if let Some(own) = own {
        let wrapper = Architecture::of(own).ok_or_else(|| unsupported(own))?;
        if wrapper != found {
            return Err(outer.error(
                "model_type",
                format!("`{own}` contradicts `text_config.model_type`, which is `{name}`"),
            ));
        }
    }
    Ok((found, name))
}

fn tied(
    outer: &Section<'_>,
    nested: Option<&Section<'_>>,
    notes: &mut Vec<String>,
) -> Result<Option<bool>> {
    let key = "tie_word_embeddings";
    let own = outer.boolean(key)?;
    let Some(nested) = nested else { return Ok(own) };
    let inner = nested.boolean(key)?;
    if let (Some(inner), Some(own)) = (inner, own)
        && inner != own
    {
        notes.push(format!(
            "`text_config.{key}` is {inner} but `{key}` is {own}; the first is used"
        ));
    }
    Ok(inner.or(own))
}

fn eos(outer: &Section<'_>, text: &Section<'_>) -> Result<Vec<u32>> {
    let own = outer.tokens("eos_token_id")?.filter(|ids| !ids.is_empty());
    let inner = text.tokens("eos_token_id")?;
    Ok(own.or(inner).unwrap_or_default())
}
