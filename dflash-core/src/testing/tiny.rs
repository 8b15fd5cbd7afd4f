//! Tiny checkpoints with random weights: any architecture, any change of the config or of a weight.
//!
//! The tensors follow from the config, so a changed config gives a checkpoint that fits it.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::fakes::scramble;
use super::plan::{Around, Plan, Planned};
use crate::config::{Architecture, DraftConfig, DraftKind, TargetConfig};
use crate::{DType, Error, Result};

/// A checkpoint that is not written yet.
#[derive(Debug, Clone)]
pub struct Tiny {
    /// config.json.
    pub config: Value,
    tensors: BTreeMap<String, Numbers>,
    seed: u64,
    dtype: DType,
}

#[derive(Debug, Clone)]
struct Numbers {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// A target's config: two or four layers of odd sizes. `tweak` changes it.
pub fn target_config(architecture: Architecture, tweak: impl FnOnce(&mut Value)) -> Value {
    let mut config = json!({
        "architectures": ["Tiny"],
        "model_type": architecture.name(),
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
        "eos_token_id": 2,
    });
    let mut extra = |more: Value| {
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
    };
    if matches!(
        architecture,
        Architecture::Qwen3Moe | Architecture::Qwen35Moe
    ) {
        extra(json!({
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "norm_topk_prob": true,
            "decoder_sparse_step": 1,
        }));
    }
    if architecture == Architecture::Qwen35Moe {
        extra(json!({"shared_expert_intermediate_size": 20}));
    }
    if architecture.is_hybrid() {
        extra(json!({
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 6,
            "partial_rotary_factor": 0.5,
        }));
    }
    tweak(&mut config);
    config
}

/// A draft's config for a target's: two layers, block 8, taps on the first and last layer. `tweak` changes it.
pub fn draft_config(kind: DraftKind, target: &Value, tweak: impl FnOnce(&mut Value)) -> Value {
    let layers = target["num_hidden_layers"].as_u64().unwrap_or(1);
    let mut config = json!({
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": target["vocab_size"],
        "hidden_size": target["hidden_size"],
        "intermediate_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "num_target_layers": layers,
        "is_causal": false,
        "dflash_config": {"block_size": 8, "mask_token_id": 60, "target_layer_ids": [0, layers - 1]},
    });
    if kind == DraftKind::DFlash2 {
        config["architectures"] = json!(["DFlash2DraftModel"]);
        if let Value::Object(nested) = &mut config["dflash_config"] {
            let more = json!({
                "conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 4,
            });
            if let Value::Object(more) = more {
                nested.extend(more);
            }
        }
    }
    tweak(&mut config);
    config
}

impl Tiny {
    /// A target with random weights for a config.
    ///
    /// # Errors
    /// If the config is not a target's.
    pub fn target(config: Value, seed: u64) -> Result<Self> {
        let read = TargetConfig::parse(Path::new("config.json"), config.to_string().as_bytes())?;
        let mut tiny = Self::empty(config, seed);
        tiny.fill(Plan::target(&read));
        Ok(tiny)
    }

    /// A draft with random weights for a config.
    ///
    /// # Errors
    /// If the config is not a draft's.
    pub fn draft(config: Value, seed: u64) -> Result<Self> {
        let read = DraftConfig::parse(
            Path::new("config.json"),
            config.to_string().as_bytes(),
            false,
        )?;
        let mut tiny = Self::empty(config, seed);
        tiny.fill(Plan::draft(&read));
        Ok(tiny)
    }

    fn empty(config: Value, seed: u64) -> Self {
        Self {
            config,
            tensors: BTreeMap::new(),
            seed,
            dtype: DType::F32,
        }
    }

    /// The format that tensors are written in.
    #[must_use]
    pub fn stored_as(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Rounds every number to a format, so that files in that format and in wider ones hold the same.
    pub fn round_to(&mut self, dtype: DType) {
        for tensor in self.tensors.values_mut() {
            for value in &mut tensor.values {
                *value = match dtype {
                    DType::F32 => *value,
                    DType::Bf16 => half::bf16::from_f32(*value).to_f32(),
                    DType::F16 => half::f16::from_f32(*value).to_f32(),
                };
            }
        }
    }

    /// The names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    /// Changes a tensor's numbers.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut [f32])) -> Result<()> {
        let tensor = self
            .tensors
            .get_mut(name)
            .ok_or_else(|| Error::MissingTensor {
                path: "tiny".into(),
                name: name.into(),
                tried: vec![name.into()],
            })?;
        change(&mut tensor.values);
        Ok(())
    }

    /// Changes the numbers of all tensors whose name contains a text.
    pub fn change_all(&mut self, part: &str, change: impl Fn(&mut [f32])) {
        for (name, tensor) in &mut self.tensors {
            if name.contains(part) {
                change(&mut tensor.values);
            }
        }
    }

    /// Writes config.json and model.safetensors.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        let path = folder.join("config.json");
        std::fs::write(&path, self.config.to_string()).map_err(io(&path))?;
        let bytes: Vec<(&String, &Numbers, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, t)| (name, t, self.bytes(&t.values)))
            .collect();
        let dtype = match self.dtype {
            DType::F32 => Dtype::F32,
            DType::Bf16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
        };
        let path = folder.join("model.safetensors");
        let unwritable = |e: safetensors::SafeTensorError| Error::checkpoint(&path, e.to_string());
        let views = bytes
            .iter()
            .map(|(name, t, bytes)| Ok((*name, TensorView::new(dtype, t.shape.clone(), bytes)?)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(unwritable)?;
        let file = safetensors::serialize(views, None).map_err(unwritable)?;
        std::fs::write(&path, file).map_err(io(&path))
    }

    fn bytes(&self, values: &[f32]) -> Vec<u8> {
        match self.dtype {
            DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::Bf16 => values
                .iter()
                .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
                .collect(),
            DType::F16 => values
                .iter()
                .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
                .collect(),
        }
    }

    fn fill(&mut self, plan: Plan) {
        for (at, Planned { name, shape, fill }) in plan.tensors.into_iter().enumerate() {
            let Around(middle, spread) = fill;
            let seed = self.seed.wrapping_add(at as u64 * 7919);
            let count: usize = shape.iter().product();
            #[expect(clippy::cast_precision_loss, reason = "24 bits")]
            let values = (0..count as u64)
                .map(|i| (scramble(seed, i) >> 40) as f32 / (1u32 << 23) as f32 - 1.0)
                .map(|unit| middle + spread * unit)
                .collect();
            self.tensors.insert(name, Numbers { shape, values });
        }
    }
}
