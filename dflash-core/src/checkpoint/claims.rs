//! Strict accounting: every tensor of a checkpoint is claimed once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::names::{Nest, skipped};
use super::small_float::SmallFloat;
use super::tensor::{StoredTensor, StoredType};
use super::weight::WeightSource;
use crate::config::{QuantConfig, QuantSpec};
use crate::{Error, Result};

/// Hands out a checkpoint's tensors, each once, by the model's names.
///
/// Names are canonical: `embed_tokens.weight`, `layers.3.input_layernorm.weight`, `norm.weight`,
/// `lm_head.weight`; a *module* is a name without `.weight`. The file's prefix is added here. A
/// name that does not end in `.weight` is also found with it.
#[derive(Debug)]
pub struct Claims {
    path: PathBuf,
    tensors: Arc<BTreeMap<String, StoredTensor>>,
    quantization: Option<QuantConfig>,
    nest: Nest,
    norms_are_offsets: bool,
    strict: bool,
    claimed: BTreeSet<String>,
    notes: Vec<String>,
}

impl Claims {
    pub(super) fn target(
        path: PathBuf,
        tensors: Arc<BTreeMap<String, StoredTensor>>,
        quantization: Option<QuantConfig>,
    ) -> Result<Self> {
        let nest = Nest::find(&path, &tensors)?;
        let norms_are_offsets = has_raw_convolutions(&path, &tensors, nest)?;
        Ok(Self {
            path,
            tensors,
            quantization,
            nest,
            norms_are_offsets,
            strict: false,
            claimed: BTreeSet::new(),
            notes: Vec::new(),
        })
    }

    pub(super) fn draft(
        path: PathBuf,
        tensors: Arc<BTreeMap<String, StoredTensor>>,
        quantization: Option<QuantConfig>,
    ) -> Result<Self> {
        Ok(Self {
            strict: true,
            ..Self::target(path, tensors, quantization)?
        })
    }

    /// The checkpoint, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The prefix under which the file keeps the decoder, for reports: `model.language_model`.
    pub fn nest(&self) -> &'static str {
        self.nest.name()
    }

    /// True if the file has a tensor for this canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.locate(name).is_some()
    }

    /// Claims the tensor `name`.
    ///
    /// # Errors
    /// It is missing, has another shape, or was claimed before.
    pub fn require(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor> {
        let tried = || self.spellings(name);
        let missing = || Error::MissingTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            tried: tried(),
        };
        let tensor = self.locate(name).ok_or_else(missing)?.clone();
        if tensor.shape != shape {
            return Err(Error::shape(
                format!("tensor `{}` of `{}`", tensor.name, self.path.display()),
                format!("{shape:?}"),
                format!("{:?}", tensor.shape),
            ));
        }
        self.mark(&tensor.name)?;
        Ok(tensor)
    }

    /// Claims the tensor `name` if the file has it.
    ///
    /// # Errors
    /// It has another shape, or was claimed before.
    pub fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<StoredTensor>> {
        if self.has(name) {
            self.require(name, shape).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Claims the tensor `name`, which must hold floating-point numbers.
    ///
    /// # Errors
    /// As [`Claims::require`], or it is of another type.
    pub fn float(&mut self, name: &str, shape: &[usize]) -> Result<StoredTensor> {
        let tensor = self.require(name, shape)?;
        if tensor.float_dtype().is_none() {
            return Err(tensor.not_a_float());
        }
        Ok(tensor)
    }

    /// Claims the weight `[out, inp]` of a linear layer or an embedding, as the file stores it.
    /// Its additive bias, if the model has one, is a tensor of its own (`module.bias`).
    ///
    /// # Errors
    /// A tensor is missing, has another shape or type, or is quantized in an unsupported format.
    pub fn weight(&mut self, module: &str, out: usize, inp: usize) -> Result<WeightSource> {
        match self.quantized(module)? {
            None => self
                .float(&format!("{module}.weight"), &[out, inp])
                .map(WeightSource::Plain),
            Some(spec) => self.packed(module, spec, &[], out, inp),
        }
    }

    /// Claims the weights `[count, out, inp]` of `count` layers in one tensor, as one weight each.
    pub(super) fn stacked_weight(
        &mut self,
        module: &str,
        count: usize,
        out: usize,
        inp: usize,
    ) -> Result<Vec<WeightSource>> {
        let all = match self.quantized(module)? {
            None => {
                let all = self.float(&format!("{module}.weight"), &[count, out, inp])?;
                WeightSource::Plain(all)
            }
            Some(spec) => self.packed(module, spec, &[count], out, inp)?,
        };
        Ok((0..count).map(|i| all.part(i)).collect())
    }

    /// Whether the embedding serves as head. `tied` is what the configuration says; where it says
    /// nothing, a checkpoint without a head is tied. A head that a tied model ships all the same
    /// is dropped with a note. If the answer is false, `lm_head` is there to be claimed, or is
    /// missing.
    pub fn head_is_tied(&mut self, tied: Option<bool>) -> bool {
        let parts = ["weight", "scales", "biases"].map(|part| format!("lm_head.{part}"));
        let present = self.has(&parts[0]);
        let tied = tied.unwrap_or(!present);
        if tied && present {
            let names: Vec<String> = parts
                .iter()
                .filter_map(|part| self.locate(part))
                .map(|t| t.name.clone())
                .collect();
            self.claimed.extend(names);
            self.notes.push(
                "the checkpoint has an `lm_head`, but its configuration ties the head to the embedding; dropped".into(),
            );
        }
        tied
    }

    /// Claims a codebook `[ids, rank]` of a candidate selector: a weight, with or without
    /// `.weight` at the end of its name.
    ///
    /// # Errors
    /// As [`Claims::weight`].
    pub fn codebook(&mut self, name: &str, ids: usize, rank: usize) -> Result<WeightSource> {
        match self.quantized(name)? {
            None => self.float(name, &[ids, rank]).map(WeightSource::Plain),
            Some(spec) => self.packed(name, spec, &[], ids, rank),
        }
    }

    /// Claims the weight of a depthwise convolution as `[channels, taps]`, last tap = newest row.
    /// Files store it as `[channels, 1, taps]` or `[channels, taps, 1]`: the same bytes.
    ///
    /// # Errors
    /// As [`Claims::float`].
    pub fn conv_kernel(
        &mut self,
        name: &str,
        channels: usize,
        taps: usize,
    ) -> Result<StoredTensor> {
        let raw = self
            .locate(name)
            .is_some_and(|t| t.shape == [channels, 1, taps]);
        let shape = if raw {
            [channels, 1, taps]
        } else {
            [channels, taps, 1]
        };
        Ok(self.float(name, &shape)?.reshaped(&[channels, taps]))
    }

    /// Whether the norms of this checkpoint are stored as offsets from one (raw Hugging Face files
    /// of the Qwen3.5 family), told by the layout of its convolutions. It concerns
    /// `input_layernorm`, `post_attention_layernorm`, `q_norm`, `k_norm` and the final `norm`, to
    /// which one is then added in f32; `linear_attn.norm` is always plain. False for a checkpoint
    /// without convolutions.
    pub fn norms_are_offsets(&self) -> bool {
        self.norms_are_offsets
    }

    /// Ends the accounting: returns notes about what was skipped.
    ///
    /// # Errors
    /// Tensors are left that nobody claimed.
    pub fn finish(self) -> Result<Vec<String>> {
        let mut notes = self.notes;
        let mut unclaimed = Vec::new();
        let mut skips: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self
            .tensors
            .keys()
            .filter(|name| !self.claimed.contains(*name))
        {
            match skipped(name) {
                Some(what) if !self.strict => *skips.entry(what).or_default() += 1,
                _ => unclaimed.push(name.clone()),
            }
        }
        if !unclaimed.is_empty() {
            return Err(Error::UnclaimedTensors {
                path: self.path,
                names: unclaimed,
            });
        }
        notes.extend(
            skips
                .into_iter()
                .map(|(what, count)| format!("{count} tensor(s) skipped: {what}")),
        );
        Ok(notes)
    }

    fn spellings(&self, name: &str) -> Vec<String> {
        let mut names = self.nest.spellings(name);
        if !name.ends_with(".weight") {
            let longer: Vec<String> = names.iter().map(|n| format!("{n}.weight")).collect();
            names.extend(longer);
        }
        names
    }

    fn locate(&self, name: &str) -> Option<&StoredTensor> {
        self.spellings(name)
            .iter()
            .find_map(|spelling| self.tensors.get(spelling))
    }

    fn mark(&mut self, name: &str) -> Result<()> {
        if self.claimed.insert(name.to_owned()) {
            return Ok(());
        }
        Err(Error::checkpoint(
            &self.path,
            format!("tensor `{name}` would be used twice"),
        ))
    }

    /// How a module is quantized: iff it has scales and the configuration does not exclude it.
    fn quantized(&self, module: &str) -> Result<Option<QuantSpec>> {
        let scales = self
            .locate(&format!("{module}.scales"))
            .map(|t| t.name.as_str());
        let Some(quantization) = &self.quantization else {
            return match scales {
                None => Ok(None),
                Some(name) => Err(Error::checkpoint(
                    &self.path,
                    format!(
                        "`{name}` belongs to a quantized module, but config.json has no `quantization`"
                    ),
                )),
            };
        };
        let Some(scales) = scales else {
            let spelled = self.nest.spellings(module);
            if let Some(path) = spelled.iter().find(|path| quantization.names_module(path)) {
                let name = format!("{path}.scales");
                return Err(Error::MissingTensor {
                    path: self.path.clone(),
                    tried: vec![name.clone()],
                    name,
                });
            }
            return Ok(None);
        };
        let path = scales.trim_end_matches(".scales");
        Ok(quantization.for_module(path))
    }

    /// Claims the tensors of a quantized module; `lead` is the shape in front of `[out, inp]`.
    fn packed(
        &mut self,
        module: &str,
        spec: QuantSpec,
        lead: &[usize],
        out: usize,
        inp: usize,
    ) -> Result<WeightSource> {
        let format = SmallFloat::of(spec.mode);
        // Rows of small floats are whole steps of 32 even where a group is shorter.
        let unit = format.map_or(spec.group, |f| f.group().max(32));
        if !inp.is_multiple_of(unit) {
            return Err(Error::shape(
                format!("input width of the quantized `{module}`"),
                format!("a multiple of its group, {unit}"),
                inp,
            ));
        }
        let shape = |columns: usize| [lead, &[out, columns]].concat();
        let columns = inp / 32 * usize::from(spec.bits);
        let codes = self.require(&format!("{module}.weight"), &shape(columns))?;
        if codes.dtype != StoredType::U32 {
            return Err(codes.not_words());
        }
        let factors = shape(inp / spec.group);
        if let Some(format) = format {
            let scales = self.require(&format!("{module}.scales"), &factors)?;
            if scales.dtype != StoredType::U8 {
                let what = format!("tensor `{}` in {}", scales.name, scales.dtype);
                return Err(Error::unsupported(what)
                    .with_hint(format!("scales of {} are stored in U8", format.name())));
            }
            return Ok(WeightSource::SmallFloat {
                codes,
                scales,
                format,
                out,
                inp,
            });
        }
        let scales = self.float(&format!("{module}.scales"), &factors)?;
        let biases = self.float(&format!("{module}.biases"), &factors)?;
        if scales.dtype != biases.dtype {
            return Err(Error::checkpoint(
                &self.path,
                format!(
                    "`{}` is {} but its biases are {}",
                    scales.name, scales.dtype, biases.dtype
                ),
            ));
        }
        Ok(WeightSource::Affine {
            codes,
            scales,
            biases,
            bits: spec.bits,
            group: spec.group,
            out,
            inp,
        })
    }
}

/// Whether the decoder's convolutions have the raw layout.
///
/// # Errors
/// One has neither layout, or two of them differ.
fn has_raw_convolutions(
    path: &Path,
    tensors: &BTreeMap<String, StoredTensor>,
    nest: Nest,
) -> Result<bool> {
    let mut seen: Option<(bool, &str)> = None;
    let ours =
        |name: &str| name.ends_with("linear_attn.conv1d.weight") && name.starts_with(nest.decoder);
    for (name, tensor) in tensors.iter().filter(|(name, _)| ours(name)) {
        let raw = match tensor.shape.as_slice() {
            [_, 1, taps] if *taps > 1 => true,
            [_, taps, 1] if *taps > 1 => false,
            other => {
                let expected = "[channels, 1, taps] or [channels, taps, 1]";
                return Err(Error::shape(
                    format!("tensor `{name}`"),
                    expected,
                    format!("{other:?}"),
                ));
            }
        };
        match seen {
            Some((before, other)) if before != raw => {
                return Err(Error::checkpoint(
                    path,
                    format!(
                        "`{name}` and `{other}` have different layouts, so it is unclear whether norms are offsets from one"
                    ),
                ));
            }
            _ => seen = Some((raw, name)),
        }
    }
    Ok(seen.is_some_and(|(raw, _)| raw))
}
