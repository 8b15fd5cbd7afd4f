//! Tiny checkpoints with random weights: any architecture, any change of the config or of a weight.
//!
//! The tensors follow from the config, so a changed config gives a checkpoint that fits it.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::fakes::scramble;
use crate::config::{Architecture, DraftConfig, DraftKind, Mixer, TargetConfig};
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

/// How a tensor is filled: evenly within a spread around a middle.
#[derive(Debug, Clone, Copy)]
struct Around(f32, f32);

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
        tiny.add_target(&read);
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
        tiny.add_draft(&read);
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

    fn add(&mut self, name: String, shape: &[usize], fill: Around) {
        let Around(middle, spread) = fill;
        let seed = self.seed.wrapping_add(self.tensors.len() as u64 * 7919);
        let count: usize = shape.iter().product();
        #[expect(clippy::cast_precision_loss, reason = "24 bits")]
        let values = (0..count as u64)
            .map(|i| (scramble(seed, i) >> 40) as f32 / (1u32 << 23) as f32 - 1.0)
            .map(|unit| middle + spread * unit)
            .collect();
        let shape = shape.to_vec();
        self.tensors.insert(name, Numbers { shape, values });
    }

    /// A matrix that about keeps the size of its input.
    fn matrix(&mut self, module: &str, out: usize, inp: usize) {
        #[expect(clippy::cast_precision_loss, reason = "tiny sizes")]
        let spread = (3.0 / inp as f32).sqrt();
        self.add(format!("{module}.weight"), &[out, inp], Around(0.0, spread));
    }

    fn linear(&mut self, module: &str, out: usize, inp: usize, bias: bool) {
        self.matrix(module, out, inp);
        if bias {
            self.add(format!("{module}.bias"), &[out], Around(0.0, 0.3));
        }
    }

    /// A norm, as an offset from one where the file is a hybrid's.
    fn norm(&mut self, module: &str, dim: usize, offset: bool) {
        let middle = if offset { 0.0 } else { 1.0 };
        self.add(format!("{module}.weight"), &[dim], Around(middle, 0.3));
    }

    fn mlp(&mut self, module: &str, hidden: usize, size: usize, bias: bool) {
        self.linear(&format!("{module}.gate_proj"), size, hidden, bias);
        self.linear(&format!("{module}.up_proj"), size, hidden, bias);
        self.linear(&format!("{module}.down_proj"), hidden, size, bias);
    }

    fn add_target(&mut self, c: &TargetConfig) {
        let (hidden, hybrid) = (c.hidden_size, c.architecture.is_hybrid());
        self.add(
            "model.embed_tokens.weight".into(),
            &[c.vocab_size, hidden],
            Around(0.0, 1.0),
        );
        for (i, layer) in c.layers.iter().enumerate() {
            let name = |part: &str| format!("model.layers.{i}.{part}");
            self.norm(&name("input_layernorm"), hidden, hybrid);
            self.norm(&name("post_attention_layernorm"), hidden, hybrid);
            match (layer.mixer, &c.gated_delta) {
                (Mixer::GatedDelta, Some(d)) => {
                    let m = name("linear_attn");
                    let width = d.value_heads * d.value_dim;
                    self.linear(
                        &format!("{m}.in_proj_qkv"),
                        d.conv_channels(),
                        hidden,
                        false,
                    );
                    self.linear(&format!("{m}.in_proj_z"), width, hidden, false);
                    self.linear(&format!("{m}.in_proj_a"), d.value_heads, hidden, false);
                    self.linear(&format!("{m}.in_proj_b"), d.value_heads, hidden, false);
                    self.linear(&format!("{m}.out_proj"), hidden, width, false);
                    self.norm(&format!("{m}.norm"), d.value_dim, false);
                    let conv = [d.conv_channels(), 1, d.conv_kernel];
                    self.add(format!("{m}.conv1d.weight"), &conv, Around(0.0, 0.8));
                    self.add(format!("{m}.A_log"), &[d.value_heads], Around(0.5, 0.5));
                    self.add(format!("{m}.dt_bias"), &[d.value_heads], Around(-2.0, 1.0));
                }
                _ => {
                    let (a, m) = (&c.attention, name("self_attn"));
                    let (width, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
                    let queries = if a.output_gate { 2 * width } else { width };
                    self.linear(&format!("{m}.q_proj"), queries, hidden, a.bias);
                    self.linear(&format!("{m}.k_proj"), kv, hidden, a.bias);
                    self.linear(&format!("{m}.v_proj"), kv, hidden, a.bias);
                    self.linear(&format!("{m}.o_proj"), hidden, width, a.bias);
                    if a.qk_norm {
                        self.norm(&format!("{m}.q_norm"), a.head_dim, hybrid);
                        self.norm(&format!("{m}.k_norm"), a.head_dim, hybrid);
                    }
                }
            }
            match (&c.moe, c.intermediate_size) {
                (Some(moe), _) if layer.sparse => {
                    self.matrix(&name("mlp.gate"), moe.experts, hidden);
                    for e in 0..moe.experts {
                        let module = name(&format!("mlp.experts.{e}"));
                        self.mlp(&module, hidden, moe.intermediate_size, false);
                    }
                    if let Some(size) = moe.shared_intermediate_size {
                        self.mlp(&name("mlp.shared_expert"), hidden, size, false);
                        self.matrix(&name("mlp.shared_expert_gate"), 1, hidden);
                    }
                }
                (_, size) => self.mlp(&name("mlp"), hidden, size.unwrap_or(1), c.mlp_bias),
            }
        }
        self.norm("model.norm", hidden, hybrid);
        if c.tie_word_embeddings != Some(true) {
            self.matrix("lm_head", c.vocab_size, hidden);
        }
    }

    fn add_draft(&mut self, c: &DraftConfig) {
        let hidden = c.hidden_size;
        self.matrix("fc", hidden, c.target_layer_ids.len() * hidden);
        self.norm("hidden_norm", hidden, false);
        self.norm("norm", hidden, false);
        for i in 0..c.layers.len() {
            let name = |part: &str| format!("layers.{i}.{part}");
            self.norm(&name("input_layernorm"), hidden, false);
            self.norm(&name("post_attention_layernorm"), hidden, false);
            let (width, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
            for (part, out, inp) in [
                ("q_proj", width, hidden),
                ("k_proj", kv, hidden),
                ("v_proj", kv, hidden),
                ("o_proj", hidden, width),
            ] {
                self.linear(
                    &name(&format!("self_attn.{part}")),
                    out,
                    inp,
                    c.attention_bias,
                );
            }
            self.norm(&name("self_attn.q_norm"), c.head_dim, false);
            self.norm(&name("self_attn.k_norm"), c.head_dim, false);
            self.mlp(&name("mlp"), hidden, c.intermediate_size, false);
            if let Some(second) = &c.dflash2 {
                let taps = second.conv_kernel_size;
                let groups = hidden / second.conv_group_size;
                for part in ["attention_conv", "mlp_conv"] {
                    self.add(
                        name(&format!("{part}.base_kernel")),
                        &[2, taps, hidden],
                        Around(0.5, 0.4),
                    );
                    self.matrix(
                        &name(&format!("{part}.kernel_projection")),
                        2 * taps * groups,
                        hidden,
                    );
                }
            }
        }
        if let Some(second) = &c.dflash2 {
            let rank = second.selector_rank;
            let module = "candidate_selector";
            self.matrix(&format!("{module}.hidden_projection"), rank, hidden);
            for book in ["predecessor_codebook", "successor_codebook"] {
                self.add(
                    format!("{module}.{book}"),
                    &[c.vocab_size, rank],
                    Around(0.0, 1.0),
                );
            }
        }
    }
}
