//! `config.json` of a DFlash or DFlash 2 draft.
//!
//! Published files keep the draft's own keys in `dflash_config`, at the top level, or in both; a
//! place that wins although another one disagrees is noted. A draft is a Qwen3-shaped decoder
//! without embedding and head (DFlash, arXiv 2602.06036, section 3).

use std::path::{Path, PathBuf};

use super::json::{MAX_LAYERS, MAX_POSITION, Section, parse_object, read_file};
use super::keys::{Kind, unknown_key_notes};
use super::quant::{self, QuantConfig};
use super::rope::{self, RopeConfig, refuse};
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
        let mut reader = Places {
            flat: &flat,
            nested: nested.as_ref(),
            notes: Vec::new(),
        };
        let kind = reader.kind(has_dflash2_tensors)?;
        reader.refuse_foreign_keys()?;

        let quantization = quant::read(&[&flat], &mut reader.notes)?;
        let hidden_size = flat.need_size("hidden_size")?;
        let (heads, kv_heads) = (
            flat.need_size("num_attention_heads")?,
            flat.need_size("num_key_value_heads")?,
        );
        if heads % kv_heads != 0 {
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
            return Err(flat.error(
                "mask_token_id",
                format!("{mask_token_id} is outside the {vocab_size} ids of the vocabulary"),
            ));
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

/// The two places of a draft's keys.
struct Places<'s, 'a> {
    flat: &'s Section<'a>,
    nested: Option<&'s Section<'a>>,
    notes: Vec<String>,
}

impl<'a> Places<'_, 'a> {
    /// The value in `dflash_config`, else the flat one.
    fn first<T: PartialEq>(
        &mut self,
        key: &str,
        read: impl Fn(&Section<'a>, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let (nested, flat) = self.both(key, read)?;
        self.choose(key, nested, flat, "dflash_config.")
    }

    /// The flat value, else the one in `dflash_config`.
    fn first_flat<T: PartialEq>(
        &mut self,
        key: &str,
        read: impl Fn(&Section<'a>, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let (nested, flat) = self.both(key, read)?;
        self.choose(key, flat, nested, "")
    }

    fn both<T>(
        &self,
        key: &str,
        read: impl Fn(&Section<'a>, &str) -> Result<Option<T>>,
    ) -> Result<(Option<T>, Option<T>)> {
        let nested = self.nested.map(|s| read(s, key)).transpose()?.flatten();
        Ok((nested, read(self.flat, key)?))
    }

    fn choose<T: PartialEq>(
        &mut self,
        key: &str,
        first: Option<T>,
        second: Option<T>,
        winner: &str,
    ) -> Result<Option<T>> {
        if first.is_some() && second.is_some() && first != second {
            self.notes.push(format!(
                "`{key}` and `dflash_config.{key}` disagree; `{winner}{key}` is used"
            ));
        }
        Ok(first.or(second))
    }

    fn kind(&mut self, has_dflash2_tensors: bool) -> Result<DraftKind> {
        let names = self.flat.texts("architectures")?.unwrap_or_default();
        if names.contains(&"DFlash2DraftModel") {
            return Ok(DraftKind::DFlash2);
        }
        let newer = |name: &&&str| {
            name.starts_with("DFlash")
                && name.ends_with("DraftModel")
                && **name != "DFlashDraftModel"
        };
        if let Some(name) = names.iter().find(newer) {
            return Err(
                Error::unsupported(format!("the draft architecture `{name}`"))
                    .with_hint("supported: DFlashDraftModel, DFlash2DraftModel"),
            );
        }
        if let Some(name) = names.iter().find(|name| **name != "DFlashDraftModel") {
            self.notes.push(format!(
                "`architectures` names `{name}`; read as a DFlash draft because of its other keys"
            ));
        }
        if !has_dflash2_tensors {
            return Ok(DraftKind::DFlash1);
        }
        self.notes.push("`architectures` does not name DFlash2DraftModel, but the checkpoint holds DFlash 2 tensors; read as DFlash 2".into());
        Ok(DraftKind::DFlash2)
    }

    fn refuse_foreign_keys(&mut self) -> Result<()> {
        match self.flat.text("hidden_act")? {
            None | Some("silu" | "swish") => {}
            Some(other) => {
                return Err(refuse(self.flat, "hidden_act", &other.into())
                    .with_hint("drafts are built with `silu`"));
            }
        }
        for key in ["mlp_bias", "rope_traditional", "rope_interleaved"] {
            if self.flat.boolean(key)? == Some(true) {
                return Err(refuse(self.flat, key, &true.into()));
            }
        }
        match self.flat.text("model_type")? {
            None | Some("qwen3" | "dflash" | "dflash2") => {}
            Some(other) => self.notes.push(format!(
                "`model_type` is `{other}`; every draft is read as Qwen3-shaped"
            )),
        }
        Ok(())
    }

    fn rope(&mut self, head_dim: usize, max_positions: Option<usize>) -> Result<RopeConfig> {
        let keys = rope::read_keys(self.flat, max_positions, &mut self.notes)?;
        if keys.partial.is_some_and(|p| p != 1.0) {
            self.notes.push(
                "`partial_rotary_factor` is the target's; a draft rotates whole heads".into(),
            );
        }
        let theta = self.flat.required("rope_theta", keys.theta)?;
        rope::rope(self.flat, theta, head_dim, 1.0, keys.scaling)
    }

    fn taps(&mut self, num_target_layers: Option<usize>) -> Result<Vec<usize>> {
        let key = "target_layer_ids";
        let ids = self.first(key, Section::indices)?;
        let ids = self.flat.required(key, ids)?;
        if ids.is_empty() || ids.len() as u64 > MAX_LAYERS {
            return Err(self.flat.error(
                key,
                format!(
                    "{} layers; expected at least one and at most {MAX_LAYERS}",
                    ids.len()
                ),
            ));
        }
        for (i, id) in ids.iter().enumerate() {
            if ids[..i].contains(id) {
                return Err(self.flat.error(key, format!("layer {id} is named twice")));
            }
            let Some(count) = num_target_layers else {
                continue;
            };
            if *id >= count {
                let error = self.flat.error(
                    key,
                    format!("layer {id} of a target of {count} layers, counted from 0"),
                );
                return Err(if *id == count {
                    error.with_hint(
                        "these ids seem to count the embedding as 0; each must be one less",
                    )
                } else {
                    error
                });
            }
        }
        if !ids.is_sorted() {
            self.notes.push(format!(
                "`{key}` is not ascending; taps are concatenated in the order given"
            ));
        }
        Ok(ids)
    }

    fn causal(&mut self) -> Result<Option<bool>> {
        // Spellings that no published draft uses, in the places where they would be overlooked.
        let misplaced = [(Some(self.flat), "causal"), (self.nested, "is_causal")];
        for (place, key) in misplaced {
            if let Some(place) = place.filter(|p| p.has(key)) {
                return Err(place.error(
                    key,
                    "expected `is_causal` at the top level or `dflash_config.causal`",
                ));
            }
        }
        let flat = self.flat.boolean("is_causal")?;
        let nested = self
            .nested
            .map(|s| s.boolean("causal"))
            .transpose()?
            .flatten();
        if let (Some(a), Some(b)) = (flat, nested)
            && a != b
        {
            self.notes.push(format!(
                "`is_causal` is {a} but `dflash_config.causal` is {b}; the first is used"
            ));
        }
        Ok(flat.or(nested))
    }

    fn layers(&mut self, block_size: usize) -> Result<Vec<DraftLayer>> {
        let flat = self.flat;
        let count = flat.number_in("num_hidden_layers", 1, MAX_LAYERS)?;
        let count = flat.required("num_hidden_layers", count)?;
        let causal = self.causal()?;
        let window = flat.number_in("sliding_window", 1, MAX_POSITION)?;
        let in_use = flat.boolean("use_sliding_window")?;
        let Some(types) = flat.texts("layer_types")? else {
            if in_use == Some(true) {
                self.notes.push("`use_sliding_window` is true but `layer_types` is missing; every layer sees all rows".into());
            }
            return Ok(vec![
                DraftLayer {
                    window: None,
                    causal: causal.unwrap_or(false)
                };
                count
            ]);
        };
        if types.len() != count {
            return Err(flat.error(
                "layer_types",
                format!("{} entries for {count} layers", types.len()),
            ));
        }
        if types.contains(&"sliding_attention") {
            match in_use {
                Some(true) => {}
                Some(false) => self.notes.push(
                    "`use_sliding_window` is false; layers said to slide see all context rows"
                        .into(),
                ),
                None => self.notes.push(
                    "`use_sliding_window` is missing; `layer_types` decides which layers slide"
                        .into(),
                ),
            }
        }
        let layer = |name: &&str| {
            let slides = match *name {
                "full_attention" => false,
                "sliding_attention" => true,
                other => {
                    return Err(flat.error(
                        "layer_types",
                        format!("expected full_attention or sliding_attention, found `{other}`"),
                    ));
                }
            };
            let window = if slides && in_use != Some(false) {
                Some(flat.required("sliding_window", window)?)
            } else {
                None
            };
            if let Some(window) = window.filter(|w| *w < block_size) {
                let reason = format!(
                    "{window} is shorter than the block of {block_size}; what such a block sees is not defined"
                );
                return Err(flat.error("sliding_window", reason));
            }
            Ok(DraftLayer {
                window,
                causal: causal.unwrap_or(slides),
            })
        };
        types.iter().map(layer).collect()
    }

    fn dflash2(&mut self, hidden_size: usize, vocab_size: usize) -> Result<Dflash2Config> {
        let mut need = |key: &str| {
            let found = self.first(key, Section::size)?;
            self.flat.required(key, found)
        };
        let config = Dflash2Config {
            conv_kernel_size: need("conv_kernel_size")?,
            conv_group_size: need("conv_group_size")?,
            selector_rank: need("selector_rank")?,
            selector_top_k: need("selector_top_k")?,
        };
        if hidden_size % config.conv_group_size != 0 {
            return Err(self.flat.error(
                "conv_group_size",
                format!(
                    "{} does not divide hidden_size {hidden_size}",
                    config.conv_group_size
                ),
            ));
        }
        if config.selector_top_k > vocab_size {
            return Err(self.flat.error(
                "selector_top_k",
                format!("{} of only {vocab_size} ids", config.selector_top_k),
            ));
        }
        Ok(config)
    }
}
