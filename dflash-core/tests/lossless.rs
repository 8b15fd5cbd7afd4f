//! The reference backend: text and caches are plain decoding's, whatever the draft says.

use std::path::{Path, PathBuf};

use dflash_core::backend::reference::Reference;
use dflash_core::testing::fakes::Behaviour;
use dflash_core::testing::golden::load_target;
use dflash_core::testing::lossless::{Case, check_draft_text, check_text};
use dflash_core::testing::record::Record;
use dflash_core::testing::states::{PlainStates, check_commits, check_draft_context, check_rounds};

struct Golden {
    folder: PathBuf,
    target: PathBuf,
    prompt: Vec<u32>,
}

fn golden(name: &str) -> Golden {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let record = Record::read(&folder.join("target.golden.safetensors")).expect("a record");
    Golden {
        target: folder.join("target"),
        prompt: record.ids("input_ids").expect("a prompt"),
        folder,
    }
}

impl Golden {
    fn case(&self, tokens: usize) -> Case<'_> {
        Case {
            target: &self.target,
            prompt: &self.prompt,
            tokens,
            block: 8,
        }
    }
}

fn none(what: &str, found: &[String]) {
    let shown = &found[..found.len().min(20)];
    assert!(
        found.is_empty(),
        "{what}: {} differences\n{}",
        found.len(),
        shown.join("\n")
    );
}

fn text(name: &str) {
    let g = golden(name);
    let backend = Reference::new();
    none(name, &check_text(&backend, &g.case(26)).expect("it runs"));
}

fn drafts(name: &str) {
    let g = golden(name);
    let backend = Reference::new();
    for draft in ["d1", "d1-swa", "d2", "d2-allswa"] {
        let found = check_draft_text(
            &backend,
            &g.case(40),
            &g.folder.join(draft),
            &[1, 2, 3, 5, 8],
        );
        none(&format!("{name}/{draft}"), &found.expect("it runs"));
    }
}

/// Half(k) for every k and random patterns, several chunk sizes.
fn rounds(name: &str) {
    let g = golden(name);
    let backend = Reference::new();
    let case = g.case(40);
    let target = load_target(&backend, &g.target).expect("it loads");
    let plain = PlainStates::decode(&target, &g.prompt, case.tokens).expect("it decodes");
    let all = (0..case.block)
        .map(Behaviour::Half)
        .chain((0..4).map(Behaviour::Scattered))
        .chain([
            Behaviour::Liar,
            Behaviour::NotANumber(None),
            Behaviour::FailsToPropose(2),
        ]);
    for (i, behaviour) in all.enumerate() {
        let chunk = [1, 4, 7, 512][i % 4];
        let found = check_rounds(&backend, &case, &plain, behaviour, chunk).expect("it runs");
        none(name, &found);
    }
}

fn commits(name: &str) {
    let g = golden(name);
    let backend = Reference::new();
    none(
        name,
        &check_commits(&backend, &g.case(40), 0.0).expect("it runs"),
    );
}

macro_rules! targets {
    ($($module:ident: $name:literal),* $(,)?) => {
        $(mod $module {
            #[test] fn text() { super::text($name); }
            #[test] fn drafts() { super::drafts($name); }
            #[test] fn rounds() { super::rounds($name); }
            #[test] fn commits() { super::commits($name); }
        })*
    };
}

targets! {
    qwen3: "qwen3",
    qwen3_sliding: "qwen3-swa",
    llama3: "llama3",
    qwen3_moe: "qwen3-moe",
    qwen35: "qwen3.5",
    qwen35_moe: "qwen3.5-moe",
}

/// What a draft has absorbed after any round is what it would absorb at once.
#[test]
fn draft_contexts_do_not_depend_on_rounds() {
    let backend = Reference::new();
    for name in ["qwen3", "qwen3.5"] {
        let g = golden(name);
        for draft in ["d1", "d1-swa", "d2", "d2-allswa"] {
            let folder = g.folder.join(draft);
            let (found, rounds) =
                check_draft_context(&backend, &g.case(60), &folder).expect("it runs");
            none(&format!("{name}/{draft}"), &found);
            assert!(rounds > 5, "{rounds} rounds");
        }
    }
}

/// Random models of every architecture, with sizes that no fixture has: windows of two and three rows, one key head,
/// a convolution over two rows, every expert chosen.
#[test]
fn random_models_of_every_architecture() {
    use dflash_core::config::{Architecture, DraftKind};
    use dflash_core::testing::tiny::{Tiny, draft_config, target_config};
    use serde_json::json;
    let backend = Reference::new();
    for (seed, architecture) in (0..).zip(Architecture::ALL) {
        let scratch = tempfile::tempdir().expect("a folder");
        let config = target_config(architecture, |c| {
            c["num_key_value_heads"] = json!(1);
            if architecture.is_hybrid() {
                c["linear_conv_kernel_dim"] = json!(2);
                c["linear_num_value_heads"] = json!(2);
            } else if architecture == Architecture::Qwen3 {
                c["use_sliding_window"] = json!(true);
                c["sliding_window"] = json!(2);
                c["layer_types"] =
                    json!(["sliding_attention", "full_attention", "sliding_attention"]);
            }
            if c.get("num_experts").is_some() {
                c["num_experts_per_tok"] = json!(4);
            }
        });
        let target = scratch.path().join("target");
        Tiny::target(config.clone(), seed)
            .and_then(|t| t.write(&target))
            .expect("it is written");
        let prompt = [3, 1, 4, 1, 5, 9, 2, 6];
        let case = Case {
            target: &target,
            prompt: &prompt,
            tokens: 30,
            block: 8,
        };
        let name = architecture.name();
        for (kind, window) in [(DraftKind::DFlash1, 3), (DraftKind::DFlash2, 9)] {
            let draft = scratch.path().join("draft");
            let config = draft_config(kind, &config, |c| {
                c["use_sliding_window"] = json!(true);
                c["sliding_window"] = json!(window);
                c["dflash_config"]["block_size"] = json!(window.min(8));
                c["layer_types"] = json!(["sliding_attention", "full_attention"]);
            });
            Tiny::draft(config, seed)
                .and_then(|t| t.write(&draft))
                .expect("it is written");
            let blocks = [1, 2, window.min(8)];
            none(
                name,
                &check_draft_text(&backend, &case, &draft, &blocks).expect("it runs"),
            );
        }
        let model = load_target(&backend, &target).expect("it loads");
        let plain = PlainStates::decode(&model, &prompt, case.tokens).expect("it decodes");
        for behaviour in [
            Behaviour::Half(2),
            Behaviour::Scattered(seed),
            Behaviour::Oracle,
        ] {
            none(
                name,
                &check_rounds(&backend, &case, &plain, behaviour, 3).expect("it runs"),
            );
        }
        none(name, &check_commits(&backend, &case, 0.0).expect("it runs"));
    }
}
