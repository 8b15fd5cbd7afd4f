//! The tensors of a checkpoint that follow from its config, under the names of raw files, one matrix per expert.

use crate::config::{DraftConfig, Mixer, TargetConfig};

/// How a tensor is filled: evenly within a spread around a middle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Around(pub(super) f32, pub(super) f32);

/// A tensor that is not made yet.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) fill: Around,
}

/// Tensors in the order of the model.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub(super) tensors: Vec<Planned>,
}

impl Plan {
    /// A target's tensors.
    pub(super) fn target(config: &TargetConfig) -> Self {
        let mut plan = Self::default();
        plan.add_target(config);
        plan
    }

    /// A draft's tensors.
    pub(super) fn draft(config: &DraftConfig) -> Self {
        let mut plan = Self::default();
        plan.add_draft(config);
        plan
    }

    fn add(&mut self, name: String, shape: &[usize], fill: Around) {
        let shape = shape.to_vec();
        self.tensors.push(Planned { name, shape, fill });
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
