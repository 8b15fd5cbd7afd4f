//! Candle on the processor: text and caches are plain decoding's bit for bit, whatever the draft says.

use std::path::{Path, PathBuf};

use dflash_candle::CandleCpu;
use dflash_core::testing::fakes::Behaviour;
use dflash_core::testing::golden::load_target;
use dflash_core::testing::lossless::{Case, check_draft_text, check_text};
use dflash_core::testing::record::Record;
use dflash_core::testing::states::{PlainStates, check_commits, check_rounds};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../dflash-core/tests/golden")
        .join(name)
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

fn check(name: &str) {
    let backend = CandleCpu::new(2);
    let target = folder(name).join("target");
    let record = Record::read(&folder(name).join("target.golden.safetensors")).expect("a record");
    let prompt = record.ids("input_ids").expect("a prompt");
    let case = Case {
        target: &target,
        prompt: &prompt,
        tokens: 40,
        block: 8,
    };
    none(name, &check_text(&backend, &case).expect("it runs"));
    none(name, &check_commits(&backend, &case, 0.0).expect("it runs"));
    let model = load_target(&backend, &target).expect("it loads");
    let plain = PlainStates::decode(&model, &prompt, case.tokens).expect("it decodes");
    let all = (0..case.block).map(Behaviour::Half);
    let others = [Behaviour::Liar, Behaviour::NotANumber(None)];
    for (i, behaviour) in all.chain(others).enumerate() {
        let chunk = [1, 4, 7, 512][i % 4];
        let found = check_rounds(&backend, &case, &plain, behaviour, chunk).expect("it runs");
        none(name, &found);
    }
    for draft in ["d1", "d1-swa", "d2", "d2-allswa"] {
        let draft = folder(name).join(draft);
        let found = check_draft_text(&backend, &case, &draft, &[1, 2, 3, 5, 8]);
        none(name, &found.expect("it runs"));
    }
}

macro_rules! folders {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test] fn $test() { check($name); })*
    };
}

folders! {
    qwen3: "qwen3",
    qwen3_sliding: "qwen3-swa",
    llama3: "llama3",
    qwen3_moe: "qwen3-moe",
    qwen35: "qwen3.5",
    qwen35_moe: "qwen3.5-moe",
}
