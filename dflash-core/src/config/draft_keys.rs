//! A draft's keys, which stand in `dflash_config`, at the top level, or in both.

use super::draft::{Dflash2Config, DraftKind, DraftLayer};
use super::json::{MAX_LAYERS, MAX_POSITION, Section};
use super::rope::RopeConfig;
use super::rope_keys;
use crate::{Error, PairingCheck, Result};

/// The two places of a draft's keys.
pub(super) struct Places<'s, 'a> {
    flat: &'s Section<'a>,
    nested: Option<&'s Section<'a>>,
    pub(super) notes: Vec<String>,
}

impl<'s, 'a> Places<'s, 'a> {
    pub(super) fn new(flat: &'s Section<'a>, nested: Option<&'s Section<'a>>) -> Self {
        Self {
            flat,
            nested,
            notes: Vec::new(),
        }
    }

    /// The value in `dflash_config`, else the flat one.
    pub(super) fn first<T: PartialEq>(
        &mut self,
        key: &str,
        read: impl Fn(&Section<'a>, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let (nested, flat) = self.both(key, read)?;
        self.choose(key, nested, flat, "dflash_config.")
    }

    /// The flat value, else the one in `dflash_config`.
    pub(super) fn first_flat<T: PartialEq>(
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

    pub(super) fn kind(&mut self, has_dflash2_tensors: bool) -> Result<DraftKind> {
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

    pub(super) fn refuse_foreign_keys(&mut self) -> Result<()> {
        match self.flat.text("hidden_act")? {
            None | Some("silu" | "swish") => {}
            Some(other) => {
                return Err(self
                    .flat
                    .refused("hidden_act", other)
                    .with_hint("drafts are built with `silu`"));
            }
        }
        for key in ["mlp_bias", "rope_traditional", "rope_interleaved"] {
            if self.flat.boolean(key)? == Some(true) {
                return Err(self.flat.refused(key, true));
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

    pub(super) fn rope(
        &mut self,
        head_dim: usize,
        max_positions: Option<usize>,
    ) -> Result<RopeConfig> {
        let keys = rope_keys::read(self.flat, max_positions, &mut self.notes)?;
        if keys.partial.is_some_and(|p| p != 1.0) {
            self.notes.push(
                "`partial_rotary_factor` is the target's; a draft rotates whole heads".into(),
            );
        }
        let theta = self.flat.required("rope_theta", keys.theta)?;
        rope_keys::rope(self.flat, theta, head_dim, 1.0, keys.scaling)
    }

    pub(super) fn taps(&mut self, num_target_layers: Option<usize>) -> Result<Vec<usize>> {
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
        // Repeated and unordered ids are well defined: taps are concatenated as listed.
        let Some(count) = num_target_layers else {
            return Ok(ids);
        };
        if let Some(id) = ids.iter().find(|id| **id >= count) {
            return Err(Error::Pairing {
                check: PairingCheck::Taps,
                reason: format!(
                    "tap {id} does not exist in a target of {count} layers, counted from 0"
                ),
                hint: (*id == count).then(|| {
                    "the ids seem to count the embedding as 0; each would be one too large".into()
                }),
            });
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

    pub(super) fn layers(&mut self, block_size: usize) -> Result<Vec<DraftLayer>> {
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

    pub(super) fn dflash2(
        &mut self,
        hidden_size: usize,
        vocab_size: usize,
    ) -> Result<Dflash2Config> {
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
        if !hidden_size.is_multiple_of(config.conv_group_size) {
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
