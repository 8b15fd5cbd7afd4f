//! Every recorded model folder loads, and every tensor of it is claimed.

use std::path::{Path, PathBuf};

use dflash_core::checkpoint::{Checkpoint, Claims, WeightSource};
use dflash_core::config::{Architecture, DraftConfig, DraftKind, Mixer, RopeScaling, TargetConfig};
use dflash_core::{Error, PairingCheck, Result};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn golden(name: &str) -> PathBuf {
    fixtures().join("golden").join(name)
}

const FAMILIES: [&str; 7] = [
    "llama3",
    "qwen3",
    "qwen3-tied",
    "qwen3-swa",
    "qwen3-moe",
    "qwen3.5",
    "qwen3.5-moe",
];

/// The folders below `family` whose name starts with one of `prefixes`.
fn folders(family: &str, prefixes: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(golden(family)).expect("fixtures");
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.is_dir())
        .filter(|path| {
            let name = path.file_name().expect("name").to_string_lossy();
            prefixes.iter().any(|prefix| name.starts_with(prefix))
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no fixtures for {family} {prefixes:?}");
    found
}

/// Claims everything a target uses, as its model would.
fn claim_target(config: &TargetConfig, claims: &mut Claims) -> Result<()> {
    let hidden = config.hidden_size;
    claims.weight("embed_tokens", config.vocab_size, hidden)?;
    let a = &config.attention;
    for (i, layer) in config.layers.iter().enumerate() {
        let name = |part: &str| format!("layers.{i}.{part}");
        claims.float(&name("input_layernorm.weight"), &[hidden])?;
        claims.float(&name("post_attention_layernorm.weight"), &[hidden])?;
        if layer.mixer == Mixer::GatedDelta {
            let g = config.gated_delta.expect("hybrid");
            let value = g.value_heads * g.value_dim;
            claims.weight(&name("linear_attn.in_proj_qkv"), g.conv_channels(), hidden)?;
            claims.weight(&name("linear_attn.in_proj_z"), value, hidden)?;
            claims.weight(&name("linear_attn.in_proj_a"), g.value_heads, hidden)?;
            claims.weight(&name("linear_attn.in_proj_b"), g.value_heads, hidden)?;
            claims.conv_kernel(
                &name("linear_attn.conv1d.weight"),
                g.conv_channels(),
                g.conv_kernel,
            )?;
            claims.float(&name("linear_attn.A_log"), &[g.value_heads])?;
            claims.float(&name("linear_attn.dt_bias"), &[g.value_heads])?;
            claims.float(&name("linear_attn.norm.weight"), &[g.value_dim])?;
            claims.weight(&name("linear_attn.out_proj"), hidden, value)?;
        } else {
            let gates = if a.output_gate { 2 } else { 1 };
            claims.weight(
                &name("self_attn.q_proj"),
                gates * a.heads * a.head_dim,
                hidden,
            )?;
            for part in ["self_attn.k_proj", "self_attn.v_proj"] {
                claims.weight(&name(part), a.kv_heads * a.head_dim, hidden)?;
            }
            claims.weight(&name("self_attn.o_proj"), hidden, a.heads * a.head_dim)?;
            if a.qk_norm {
                claims.float(&name("self_attn.q_norm.weight"), &[a.head_dim])?;
                claims.float(&name("self_attn.k_norm.weight"), &[a.head_dim])?;
            }
        }
        let mlp = |claims: &mut Claims, mlp: &str, width: usize| -> Result<()> {
            claims.weight(&format!("{mlp}.gate_proj"), width, hidden)?;
            claims.weight(&format!("{mlp}.up_proj"), width, hidden)?;
            claims
                .weight(&format!("{mlp}.down_proj"), hidden, width)
                .map(drop)
        };
        if !layer.sparse {
            mlp(
                claims,
                &name("mlp"),
                config.intermediate_size.expect("dense"),
            )?;
            continue;
        }
        let moe = config.moe.expect("sparse");
        claims.weight(&name("mlp.gate"), moe.experts, hidden)?;
        let experts = claims.experts(&name("mlp"), hidden, &moe)?;
        assert_eq!(
            [experts.gate.len(), experts.up.len(), experts.down.len()],
            [moe.experts; 3]
        );
        assert!(
            experts
                .up
                .iter()
                .all(|w| (w.out(), w.inp()) == (moe.intermediate_size, hidden))
        );
        if let Some(width) = moe.shared_intermediate_size {
            mlp(claims, &name("mlp.shared_expert"), width)?;
            claims.weight(&name("mlp.shared_expert_gate"), 1, hidden)?;
        }
    }
    claims.float("norm.weight", &[hidden])?;
    if !claims.head_is_tied(config.tie_word_embeddings) {
        claims.weight("lm_head", config.vocab_size, hidden)?;
    }
    Ok(())
}

fn claim_draft(config: &DraftConfig, claims: &mut Claims) -> Result<()> {
    let (hidden, head) = (config.hidden_size, config.head_dim);
    claims.weight("fc", hidden, config.target_layer_ids.len() * hidden)?;
    claims.float("hidden_norm.weight", &[hidden])?;
    claims.float("norm.weight", &[hidden])?;
    for i in 0..config.layers.len() {
        let name = |part: &str| format!("layers.{i}.{part}");
        claims.float(&name("input_layernorm.weight"), &[hidden])?;
        claims.float(&name("post_attention_layernorm.weight"), &[hidden])?;
        claims.weight(&name("self_attn.q_proj"), config.heads * head, hidden)?;
        claims.weight(&name("self_attn.k_proj"), config.kv_heads * head, hidden)?;
        claims.weight(&name("self_attn.v_proj"), config.kv_heads * head, hidden)?;
        claims.weight(&name("self_attn.o_proj"), hidden, config.heads * head)?;
        claims.float(&name("self_attn.q_norm.weight"), &[head])?;
        claims.float(&name("self_attn.k_norm.weight"), &[head])?;
        claims.weight(&name("mlp.gate_proj"), config.intermediate_size, hidden)?;
        claims.weight(&name("mlp.up_proj"), config.intermediate_size, hidden)?;
        claims.weight(&name("mlp.down_proj"), hidden, config.intermediate_size)?;
        let Some(d2) = config.dflash2 else { continue };
        for conv in ["attention_conv", "mlp_conv"] {
            let taps = d2.conv_kernel_size;
            claims.float(&name(&format!("{conv}.base_kernel")), &[2, taps, hidden])?;
            let rows = 2 * taps * (hidden / d2.conv_group_size);
            claims.weight(&name(&format!("{conv}.kernel_projection")), rows, hidden)?;
        }
    }
    if let Some(d2) = config.dflash2 {
        for side in ["predecessor", "successor"] {
            claims.codebook(
                &format!("candidate_selector.{side}_codebook"),
                config.vocab_size,
                d2.selector_rank,
            )?;
        }
        claims.weight(
            "candidate_selector.hidden_projection",
            d2.selector_rank,
            hidden,
        )?;
    }
    Ok(())
}

#[test]
fn every_target_folder_is_claimed_completely() {
    let mut loaded = 0;
    let families = FAMILIES
        .iter()
        .flat_map(|family| folders(family, &["target", "mlx"]));
    let nano = ["target", "target-vl"].map(|name| fixtures().join("nano").join(name));
    for folder in families.chain(nano) {
        let config =
            TargetConfig::read(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
        let mut claims = checkpoint.claims_for(&config).expect("one nest");
        claim_target(&config, &mut claims).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let raw = !folder.ends_with("mlx-4bit") && !folder.ends_with("mlx-8bit");
        let hybrid = config.architecture.is_hybrid();
        assert_eq!(
            claims.norms_are_offsets(),
            raw && hybrid,
            "{}",
            folder.display()
        );
        let notes = claims
            .finish()
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let vision = folder.to_string_lossy().contains("golden") && folder.ends_with("target-vl");
        assert_eq!(notes.len(), if vision { 2 } else { 0 }, "{notes:?}");
        assert!(
            config.notes.is_empty(),
            "{}: {:?}",
            folder.display(),
            config.notes
        );
        loaded += 1;
    }
    assert!(loaded > 20, "{loaded}");
}

#[test]
fn every_draft_folder_is_claimed_completely() {
    let families = FAMILIES
        .iter()
        .flat_map(|family| folders(family, &["d1", "d2"]));
    let nano = ["d1", "d2"].map(|name| fixtures().join("nano").join(name));
    for folder in families.chain(nano) {
        let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
        let config = DraftConfig::read(&folder, checkpoint.has_dflash2_tensors())
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let name = folder.file_name().expect("name").to_string_lossy();
        let second = name.starts_with("d2");
        assert_eq!(config.kind == DraftKind::DFlash2, second);
        assert_eq!(checkpoint.has_dflash2_tensors(), second);
        let mut claims = checkpoint.claims_for_draft(&config).expect("one nest");
        claim_draft(&config, &mut claims).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        assert!(claims.finish().expect("complete").is_empty());
        assert!(config.notes.is_empty(), "{name}: {:?}", config.notes);
    }
}

#[test]
fn facts_of_the_families() {
    let target = |family: &str| {
        TargetConfig::read(&golden(family).join("target")).unwrap_or_else(|e| panic!("{e}"))
    };
    let llama = target("llama3");
    assert_eq!(
        (
            llama.architecture,
            llama.tie_word_embeddings,
            llama.attention.qk_norm
        ),
        (Architecture::Llama, Some(true), false)
    );
    assert_eq!(
        (llama.eos_token_ids.as_slice(), llama.bos_token_id),
        ([2, 3].as_slice(), Some(1))
    );
    assert!(
        matches!(llama.attention.rope.scaling, RopeScaling::Llama3 { factor, original_length: 64, .. } if factor == 8.0)
    );

    let swa: Vec<Mixer> = target("qwen3-swa").layers.iter().map(|l| l.mixer).collect();
    let (s, f) = (Mixer::Sliding { window: 8 }, Mixer::Full);
    assert_eq!(swa, [s, s, f, s, s, f]);

    let moe = target("qwen3-moe");
    assert!(moe.layers.iter().all(|l| l.sparse));
    assert_eq!(
        moe.moe.map(|m| (m.experts, m.top_k, m.norm_topk)),
        Some((8, 2, true))
    );
    assert_eq!(moe.intermediate_size, None, "no dense layer");

    let hybrid = target("qwen3.5-moe");
    let full: Vec<usize> = (0..8)
        .filter(|i| hybrid.layers[*i].mixer == Mixer::Full)
        .collect();
    assert_eq!(full, [3, 7]);
    assert_eq!(hybrid.attention.rope.dims, 8, "a quarter of 32");
    assert!(hybrid.attention.output_gate);
    assert_eq!(
        hybrid
            .moe
            .and_then(|m| m.norm_topk.then_some(m.shared_intermediate_size)),
        Some(Some(48))
    );

    let nano =
        TargetConfig::read(&fixtures().join("nano/target")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        nano.eos_token_ids,
        [2, 0],
        "generation_config.json replaces config.json's"
    );
}

#[test]
fn fused_and_separate_experts_agree() {
    // The wrapper folder holds the same weights as the plain one, fused instead of one by one.
    let family = golden("qwen3.5-moe");
    let gate = |folder: &str| {
        let folder = family.join(folder);
        let config = TargetConfig::read(&folder).expect("config");
        let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
        let mut claims = checkpoint.claims_for(&config).expect("one nest");
        let moe = config.moe.expect("sparse");
        let experts = claims
            .experts("layers.2.mlp", config.hidden_size, &moe)
            .expect("experts");
        let bytes = |weights: &[WeightSource]| -> Vec<Vec<u8>> {
            weights
                .iter()
                .map(|w| match w {
                    WeightSource::Plain(t) => t.bytes.to_vec(),
                    other => panic!("plain file: {}", other.name()),
                })
                .collect()
        };
        [
            bytes(&experts.gate),
            bytes(&experts.up),
            bytes(&experts.down),
        ]
    };
    assert_eq!(gate("target"), gate("target-vl"));
}

#[test]
fn a_draft_is_no_target_and_the_other_way_round() {
    let wrong = |error: Error| {
        assert!(
            matches!(
                error,
                Error::Pairing {
                    check: PairingCheck::Role,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.hint().is_some());
    };
    wrong(TargetConfig::read(&golden("qwen3/d1")).expect_err("a draft"));
    wrong(DraftConfig::read(&golden("qwen3/target"), false).expect_err("a target"));
}
