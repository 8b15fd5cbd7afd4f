//! `config.json` of a DFlash or DFlash 2 draft.
//!
//! Published files keep the draft's own keys in `dflash_config`, at the top level, or in both; a
//! place that wins although another one disagrees is noted. A draft is a Qwen3-shaped decoder
//! without embedding and head (DFlash, arXiv 2602.06036, section 3).

use std::path::{Path, PathBuf};

use super::draft_keys::Places;
use super::json::{MAX_LAYERS, MAX_POSITION, Section, parse_object, read_file};
use super::keys::{Kind, unknown_key_notes};
use super::quant::{self, QuantConfig};
use super::rope::RopeConfig;
use crate::{Error, PairingCheck, Result};

/// The generations of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DraftKind {
    /// Block diffusion, every slot on its own.
    DFlash1,
    /// With short dynamic convolutions and a candidate selector.
    DFlash2,
}

/// A draft's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftConfig {
    /// The file it was read from.
    pub path: PathBuf,
    /// The generation.
    pub kind: DraftKind,
    /// Ids that the draft was trained with; the embedding's rows are the target's.
    pub vocab_size: usize,
    /// Width of the residual stream: the target's.
    pub hidden_size: usize,
    /// Width of the MLPs.
    pub intermediate_size: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Whether q, k, v and o have biases.
    pub attention_bias: bool,
    /// The rotary embedding, over whole heads.
    pub rope: RopeConfig,
    /// Positions the draft was made for, if stated.
    pub max_position_embeddings: Option<usize>,
    /// Rows of a block, the anchor included: at most `block_size - 1` tokens are drafted.
    pub block_size: usize,
    /// The target's layers whose outputs make up a context row, in the order of concatenation.
    pub target_layer_ids: Vec<usize>,
    /// The token of the rows after the anchor.
    pub mask_token_id: u32,
    /// Layers of the target that the draft was made for, if stated.
    pub num_target_layers: Option<usize>,
    /// One entry per layer, in order.
    pub layers: Vec<DraftLayer>,
    /// Factor on the block's embedding rows that replaces the target's own; unsaid: the target's.
    pub input_embedding_scale: Option<f32>,
    /// Factor on the logits.
    pub output_multiplier: f32,
    /// `cap * tanh(logits / cap)` after the factor.
    pub softcap: Option<f32>,
    /// What only DFlash 2 has.
    pub dflash2: Option<Dflash2Config>,
    /// How the checkpoint is quantized.
    pub quantization: Option<QuantConfig>,
    /// What was ignored, defaulted or contradictory.
    pub notes: Vec<String>,
}

/// One layer of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLayer {
    /// Context rows at `query - key < window` are visible; absent: all.
    pub window: Option<usize>,
    /// Whether a block row sees only block rows up to its own.
    pub causal: bool,
}

/// The convolutions and the candidate selector of DFlash 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dflash2Config {
    /// Taps of the short convolutions, the row itself included.
    pub conv_kernel_size: usize,
    /// Channels that share a dynamic kernel.
    pub conv_group_size: usize,
    /// Width of the selector's codebooks.
    pub selector_rank: usize,
    /// Candidates per slot.
    pub selector_top_k: usize,
}

impl DraftConfig {
    /// Reads `config.json` of a draft's folder. `has_dflash2_tensors` says whether the checkpoint
    /// holds the tensors of DFlash 2; it decides where `architectures` does not.
    ///
    /// # Errors
    /// The file cannot be read, a key is missing, contradictory or not supported, or the folder
    /// holds a target ([`PairingCheck::Role`]).
    pub fn read(folder: &Path, has_dflash2_tensors: bool) -> Result<Self> {
        let path = folder.join("config.json");
        let json = read_file(&path)?;
        Self::parse(&path, &json, has_dflash2_tensors)
    }

    /// Reads the content of a `config.json`; `path` is for messages.
    ///
    /// # Errors
    /// As [`DraftConfig::read`].
    pub fn parse(path: &Path, json: &[u8], has_dflash2_tensors: bool) -> Result<Self> {
        let map = parse_object(path, json)?;
        let flat = Section::new(path, &map);
        if !says_draft(&flat) {
            return Err(Error::Pairing {
                check: PairingCheck::Role,
                reason: format!(
                    "`{}` describes no DFlash draft (no `dflash_config`)",
                    path.display()
                ),
                hint: Some(
                    "give the target as `--model` and a DFlash draft made for it as `--draft`"
                        .into(),
                ),
            });
        }
        let nested = flat.section("dflash_config")?;
        let mut reader = Places::new(&flat, nested.as_ref());
        let kind = reader.kind(has_dflash2_tensors)?;
        reader.refuse_foreign_keys()?;

        let quantization = quant::read(&[&flat], &mut reader.notes)?;
        let hidden_size = flat.need_size("hidden_size")?;
        let (heads, kv_heads) = (
            flat.need_size("num_attention_heads")?,
            flat.need_size("num_key_value_heads")?,
        );
        if !heads.is_multiple_of(kv_heads) {
            return Err(flat.error(
                "num_key_value_heads",
                format!("{kv_heads} does not divide the {heads} query heads"),
            ));
        }
        let head_dim = flat.need_size("head_dim")?;
        let eps = flat.float("rms_norm_eps", "a number from 0 to 1", |e| {
            (0.0..=1.0).contains(&e)
        })?;
        let max_position_embeddings = flat.number_in("max_position_embeddings", 1, MAX_POSITION)?;
        let rope = reader.rope(head_dim, max_position_embeddings)?;
        let block_size = reader.first("block_size", Section::size)?;
        let block_size = flat.required("block_size", block_size)?;
        if block_size < 2 {
            return Err(flat.error(
                "block_size",
                "expected at least 2: the anchor and one drafted token",
            ));
        }
        let num_target_layers =
            reader.first_flat("num_target_layers", |s, k| s.number_in(k, 1, MAX_LAYERS))?;
        let target_layer_ids = reader.taps(num_target_layers)?;
        let vocab_size = flat.need_size("vocab_size")?;
        let mask = reader.first("mask_token_id", Section::token)?;
        let mask_token_id = flat.required("mask_token_id", mask)?;
        if mask_token_id as usize >= vocab_size {
            return Err(Error::Pairing {
                check: PairingCheck::MaskToken,
                reason: format!(
                    "the mask token {mask_token_id} is outside the draft's own vocabulary of {vocab_size} ids"
                ),
                hint: None,
            });
        }
        let layers = reader.layers(block_size)?;
        let scale = reader.first("input_embedding_scale", |s, k| {
            s.float(k, "a number other than 0", |n| n != 0.0)
        })?;
        let multiplier = reader.first("output_multiplier", |s, k| {
            s.float(k, "a number other than 0", |n| n != 0.0)
        })?;
        let softcap = reader.first("final_logit_softcapping", |s, k| {
            s.float(k, "a number", |_| true)
        })?;
        let dflash2 = match kind {
            DraftKind::DFlash1 => None,
            DraftKind::DFlash2 => Some(reader.dflash2(hidden_size, vocab_size)?),
        };

        let config = Self {
            path: path.into(),
            kind,
            vocab_size,
            hidden_size,
            intermediate_size: flat.need_size("intermediate_size")?,
            rms_norm_eps: flat.required("rms_norm_eps", eps)?,
            heads,
            kv_heads,
            head_dim,
            attention_bias: flat.boolean("attention_bias")?.unwrap_or(false),
            rope,
            max_position_embeddings,
            block_size,
            target_layer_ids,
            mask_token_id,
            num_target_layers,
            layers,
            input_embedding_scale: scale,
            output_multiplier: multiplier.unwrap_or(1.0),
            softcap: softcap.filter(|cap| *cap > 0.0),
            dflash2,
            quantization,
            notes: Vec::new(),
        };
        let mut notes = reader.notes;
        notes.extend(unknown_key_notes(&flat, Kind::Draft, |key| {
            key.starts_with("mrope_")
        }));
        if let Some(nested) = &nested {
            notes.extend(unknown_key_notes(nested, Kind::Draft, |_| false));
        }
        Ok(Self { notes, ..config })
    }

    /// The widest window that a draft whose layers all slide needs context rows for; `None` if a
    /// layer sees everything.
    pub fn widest_window(&self) -> Option<usize> {
        self.layers
            .iter()
            .map(|layer| layer.window)
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .max()
    }
}

/// True if a configuration describes a draft, whatever else is wrong with it.
pub(super) fn says_draft(section: &Section<'_>) -> bool {
    let named = |name: &str| name.starts_with("DFlash") && name.ends_with("DraftModel");
    let architectures = section
        .texts("architectures")
        .ok()
        .flatten()
        .unwrap_or_default();
    architectures.into_iter().any(named)
        || section.has("dflash_config")
        || section.has("target_layer_ids")
}
