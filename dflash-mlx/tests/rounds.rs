//! One read-back per round, steady memory, and a process that outlives a failed load.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::{Path, PathBuf};

use dflash_core::DType;
use dflash_core::load::{LoadRequest, ModelSource};
use dflash_core::spec::{Event, Step};
use dflash_core::testing::golden;
use dflash_mlx::{Mlx, Place};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../dflash-core/tests/golden")
        .join(name)
}

fn pair(target: &str, draft: &str) -> dflash_core::load::Loaded {
    let backend = Mlx::new(Place::Processor, DType::F32);
    let folder = folder(target);
    golden::load(&backend, &folder.join("target"), Some(&folder.join(draft))).expect("a pair")
}

#[test]
fn a_greedy_round_reads_once() {
    for (target, draft) in [("qwen3", "d1"), ("qwen3.5", "d2")] {
        let mut loaded = pair(target, draft);
        let request = golden::request(&[3, 1, 4, 1, 5], 40);
        let id = loaded.engine.start(request).expect("a fair request");
        let mut rounds = 0;
        loop {
            let before = loaded.engine.readbacks();
            let mut drafted = false;
            let mut note = |event| {
                drafted |= matches!(&event, Event::Round(round) if round.drafted > 0);
            };
            let step = loaded.engine.step(id, &mut note).expect("it runs");
            if drafted {
                rounds += 1;
                let reads = loaded.engine.readbacks() - before;
                assert_eq!(reads, 1, "{target} with {draft}, round {rounds}");
            }
            if matches!(step, Step::Finished(_)) {
                break;
            }
        }
        assert!(rounds > 3, "{target}: {rounds} rounds");
    }
}

#[test]
fn memory_returns_after_many_requests() {
    let mut loaded = pair("qwen3.5", "d2");
    let mut run = |count: usize| {
        for i in 0..count {
            let prompt: Vec<u32> = (0..20).map(|t| (t * 7 + i as u32) % 50).collect();
            let report =
                golden::generate(&mut loaded, &golden::request(&prompt, 12)).expect("it runs");
            assert!(report.rounds > 0 && report.drafted > 0);
        }
        mlx_rs::memory::clear_cache().expect("it clears");
        mlx_rs::memory::active_memory().expect("it counts")
    };
    let first = run(5);
    let later = run(195);
    assert!(
        later <= first + first / 50,
        "{first} bytes after 5 requests, {later} after 200"
    );
}

#[test]
fn a_failed_load_leaves_the_process_usable() {
    let folder = folder("qwen3");
    let mut request = LoadRequest::new(ModelSource::Folder(folder.join("d1")));
    assert!(dflash_mlx::load(&request).is_err(), "a draft is no target");
    request.target = ModelSource::Folder(folder.join("target"));
    request.draft = Some(ModelSource::Folder(folder.join("target")));
    assert!(dflash_mlx::load(&request).is_err(), "a target is no draft");
    request.draft = Some(ModelSource::Folder(folder.join("d1")));
    let mut loaded = dflash_mlx::load(&request).expect("a pair");
    let report = golden::generate(&mut loaded, &golden::request(&[3, 1, 4], 20)).expect("it runs");
    assert_eq!(report.tokens.len(), 20);
    assert!(report.draft_active);
}
