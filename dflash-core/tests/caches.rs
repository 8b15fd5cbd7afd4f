//! Caches after any history are those of plain decoding; and the checks that say so can fail.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use dflash_core::DType;
use dflash_core::backend::reference::Reference;
use dflash_core::cache::{Cache, CacheKind};
use dflash_core::models::LayerCache;
use dflash_core::spec::{Engine, Sampling, Step, TargetModel};
use dflash_core::testing::drive::{self, decode, finish, prefilled};
use dflash_core::testing::fakes::{Behaviour, FakeDraft, scramble};
use dflash_core::testing::fault::{Fault, Faulty};
use dflash_core::testing::golden::{self, load_target};
use dflash_core::testing::injection::{check_engine_faults, check_faults};
use dflash_core::testing::inspect::Snapshot;
use dflash_core::testing::lossless::Case;
use dflash_core::testing::record::Record;
use dflash_core::testing::states::{PlainStates, check_rounds};

const TARGETS: [&str; 6] = [
    "qwen3",
    "qwen3-swa",
    "llama3",
    "qwen3-moe",
    "qwen3.5",
    "qwen3.5-moe",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn prompt(name: &str) -> Vec<u32> {
    let record = Record::read(&folder(name).join("target.golden.safetensors")).expect("a record");
    record.ids("input_ids").expect("a prompt")
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

/// Sliding and full layers, the first one slides; a prompt of three windows, 200 tokens, the window wraps 25 times.
#[test]
fn a_mixed_target_over_many_windows() {
    let backend = Reference::new();
    let target = folder("qwen3-swa").join("target");
    let prompt: Vec<u32> = (0..24).map(|i| (scramble(1, i) % 150) as u32).collect();
    let case = Case {
        target: &target,
        prompt: &prompt,
        tokens: 200,
        block: 8,
    };
    let plain = PlainStates::decode(
        &load_target(&backend, &target).expect("it loads"),
        &prompt,
        200,
    )
    .expect("it decodes");
    for (behaviour, chunk) in [
        (Behaviour::Half(1), 5),
        (Behaviour::Half(4), 24),
        (Behaviour::Half(6), 1),
        (Behaviour::Liar, 7),
        (Behaviour::Scattered(3), 10),
    ] {
        none(
            "qwen3-swa",
            &check_rounds(&backend, &case, &plain, behaviour, chunk).expect("it runs"),
        );
    }
}

/// Any prompt, chunk size and sequence of kept counts.
#[test]
fn any_prompt_chunks_and_rounds() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    for name in TARGETS {
        let backend = Reference::new();
        let path = folder(name).join("target");
        let target = load_target(&backend, &path).expect("it loads");
        let config = Config {
            cases: 12,
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, rng());
        let rounds = RefCell::new(0);
        let strategy = (
            prop::collection::vec(0u32..160, 1..40),
            1usize..12,
            2usize..=8,
            any::<u64>(),
            1usize..24,
        );
        runner
            .run(&strategy, |(prompt, chunk, block, seed, tokens)| {
                let case = Case {
                    target: &path,
                    prompt: &prompt,
                    tokens: tokens + 4,
                    block,
                };
                let plain = PlainStates::decode(&target, &prompt, case.tokens).expect("it decodes");
                let behaviour = if block == 2 {
                    Behaviour::Half(1)
                } else {
                    Behaviour::Scattered(seed)
                };
                let found =
                    check_rounds(&backend, &case, &plain, behaviour, chunk).expect("it runs");
                *rounds.borrow_mut() += 1;
                prop_assert!(found.is_empty(), "{}: {}", name, found.join("\n"));
                Ok(())
            })
            .expect("every case holds");
        assert_eq!(*rounds.borrow(), 12, "{name}");
    }
}

fn rng() -> proptest::test_runner::TestRng {
    proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha)
}

#[test]
fn an_error_after_any_operation_leaves_the_committed_state() {
    for name in TARGETS {
        let (folder, prompt) = (folder(name), prompt(name));
        let target = folder.join("target");
        let case = Case {
            target: &target,
            prompt: &prompt,
            tokens: 20,
            block: 8,
        };
        let (found, places) =
            check_faults(&Reference::new(), &case, &folder.join("d2")).expect("it runs");
        none(name, &found);
        assert!(places > 200, "{name}: only {places} operations could fail");
    }
}

#[test]
fn an_error_in_a_step_costs_the_draft_or_the_request_only() {
    for (name, draft, stride) in [
        ("qwen3.5", "d2", 5),
        ("qwen3-swa", "d1-swa", 5),
        ("qwen3.5-moe", "d2-allswa", 9),
    ] {
        let (folder, prompt) = (folder(name), prompt(name));
        let target = folder.join("target");
        let case = Case {
            target: &target,
            prompt: &prompt,
            tokens: 24,
            block: 8,
        };
        let (found, [drafts, requests]) =
            check_engine_faults(&Reference::new(), &case, &folder.join(draft), stride)
                .expect("it runs");
        none(name, &found);
        assert!(
            drafts > 10 && requests > 10,
            "{name}: {drafts} drafts, {requests} requests"
        );
    }
}

/// The comparison of caches notices a single layer that is not put back.
#[test]
fn a_layer_that_is_not_rolled_back_is_caught() {
    let (folder, prompt) = (folder("qwen3.5"), prompt("qwen3.5"));
    let target = folder.join("target");
    let case = Case {
        target: &target,
        prompt: &prompt,
        tokens: 30,
        block: 8,
    };
    let sound = Reference::new();
    let plain = PlainStates::decode(
        &load_target(&sound, &target).expect("it loads"),
        &prompt,
        30,
    )
    .expect("it decodes");
    let faulty = Faulty::new(&sound);
    faulty.set_layers(2);
    let check = |fault| {
        faulty.set(fault);
        check_rounds(&faulty, &case, &plain, Behaviour::Half(3), 64).expect("it runs")
    };
    none("without a fault", &check(None));
    for (layer, index) in [(0, 3), (1, 7)] {
        let found = check(Some(Fault::KeepTooMuch(layer)));
        assert!(
            found
                .iter()
                .any(|f| f.contains(&format!("layer {index}: length"))),
            "attention layer {layer}: {found:?}"
        );
    }
    let found = check(Some(Fault::ForgetReplay { block: 8 }));
    assert!(
        found.iter().any(|f| f.contains("layer 0: keys or state")),
        "{found:?}"
    );
}

/// The recorded results notice one changed weight.
#[test]
fn a_changed_weight_is_caught() {
    let source = folder("qwen3");
    let changed = tempfile::tempdir().expect("a folder");
    let target = changed.path().join("target");
    std::fs::create_dir(&target).expect("a folder");
    std::fs::copy(
        source.join("target/config.json"),
        target.join("config.json"),
    )
    .expect("a copy");
    let mut bytes = std::fs::read(source.join("target/model.safetensors")).expect("a file");
    // The sign of a bf16 number in the last tensor.
    let last = bytes.len() - 1;
    bytes[last] ^= 0x80;
    std::fs::write(target.join("model.safetensors"), bytes).expect("a file");
    let record = source.join("target.golden.safetensors");
    let check = |target: &Path| {
        golden::check_target(&Reference::new(), target, &record, golden::F32_TOLERANCE)
            .expect("it loads")
    };
    none("unchanged", &check(&source.join("target")));
    assert!(!check(&target).is_empty());
}

/// A bf16 model's recurrent state holds numbers that bf16 and f16 cannot, after 512 steps too, and is the state of one
/// prompt pass.
#[test]
fn the_recurrent_state_stays_f32() {
    for name in ["qwen3.5", "qwen3.5-moe"] {
        for dtype in [DType::F32, DType::Bf16] {
            let backend = Faulty::new(&Reference::new());
            backend.set_dtype(dtype);
            let target = load_target(&backend, &folder(name).join("target")).expect("it loads");
            let mut state = target.new_state().expect("a state");
            let start = prompt(name);
            let tokens = decode(
                &target,
                &mut state,
                &start,
                513,
                Sampling::default(),
                &mut |_| Ok(()),
            )
            .expect("it decodes");
            let whole = [&start[..], &tokens[..512]].concat();
            let passed = prefilled(&target, &whole).expect("it runs");
            let snapshot = |s| Snapshot::of(&backend, s).expect("it reads");
            none(name, &snapshot(&state).differences(&snapshot(&passed), 0.0));
            let mut recurrent = 0;
            for (cache, layer) in state.caches().iter().zip(snapshot(&state).layers) {
                let LayerCache::Recurrent(cache) = cache else {
                    continue;
                };
                assert_eq!(
                    (cache.kind(), cache.len()),
                    (CacheKind::Recurrent, whole.len())
                );
                assert!(!cache.can_trim());
                let numbers: Vec<f32> = layer.bits[0].iter().map(|b| f32::from_bits(*b)).collect();
                assert!(numbers.iter().all(|n| n.is_finite()));
                let wider = numbers.iter().filter(|n| n.to_bits() & 0xFFFF != 0).count();
                assert!(
                    wider * 10 > numbers.len() * 9,
                    "{wider} of {} numbers",
                    numbers.len()
                );
                recurrent += 1;
            }
            assert_eq!(recurrent, 6);
        }
    }
}

/// Speculation is exact in bf16 activations too.
#[test]
fn rounds_with_bf16_activations() {
    for name in ["qwen3.5", "qwen3-swa"] {
        let backend = Faulty::new(&Reference::new());
        backend.set_dtype(DType::Bf16);
        let (path, prompt) = (folder(name).join("target"), prompt(name));
        let case = Case {
            target: &path,
            prompt: &prompt,
            tokens: 40,
            block: 8,
        };
        let target = load_target(&backend, &path).expect("it loads");
        let plain = PlainStates::decode(&target, &prompt, 40).expect("it decodes");
        for behaviour in [Behaviour::Half(2), Behaviour::Scattered(5)] {
            none(
                name,
                &check_rounds(&backend, &case, &plain, behaviour, 6).expect("it runs"),
            );
        }
    }
}

/// A copy goes its own way, and so does the original.
#[test]
fn forks_are_independent() {
    for name in TARGETS {
        let backend = Reference::new();
        let target = load_target(&backend, &folder(name).join("target")).expect("it loads");
        let ids = prompt(name);
        let (start, rest) = ids.split_at(9);
        let mut one = prefilled(&target, start).expect("it runs");
        let mut two = one.fork().expect("a copy");
        let before = Snapshot::of(&backend, &two).expect("it reads");
        target.prefill(&mut one, rest).expect("it runs");
        none(
            name,
            &Snapshot::of(&backend, &two)
                .expect("it reads")
                .differences(&before, 0.0),
        );
        target.prefill(&mut two, rest).expect("it runs");
        let one = Snapshot::of(&backend, &one).expect("it reads");
        none(
            name,
            &Snapshot::of(&backend, &two)
                .expect("it reads")
                .differences(&one, 0.0),
        );
        assert_ne!(one, before);
    }
}

/// A long request, a short one, a long one again on one engine: each as in an engine of its own. Memory at the end is that
/// of the first.
#[test]
fn requests_leave_nothing_in_an_engine() {
    for name in ["qwen3.5", "qwen3-swa"] {
        let (folder, prompt) = (folder(name), prompt(name));
        let load = || {
            golden::load(
                &Reference::new(),
                &folder.join("target"),
                Some(&folder.join("d2")),
            )
            .expect("it loads")
        };
        let long = golden::request(&prompt, 60);
        let short = golden::request(&prompt[..3], 4);
        let alone = |request| finish(load().engine.as_mut(), request).expect("it runs");
        let mut engine = load().engine;
        for request in [&long, &short, &long] {
            let report = finish(engine.as_mut(), request).expect("it runs");
            let alone = alone(request);
            assert_eq!(report.tokens, alone.tokens);
            assert_eq!(report.acceptance_lengths, alone.acceptance_lengths);
            assert_eq!(
                (report.memory, report.draft_memory),
                (alone.memory, alone.draft_memory)
            );
            assert!(report.drafted > 0);
            // Cancelled in its prompt, and after a round: the next one does not notice.
            for steps in [1, 2] {
                let id = engine
                    .start(golden::request(&prompt, 30))
                    .expect("it starts");
                for _ in 0..steps {
                    assert!(matches!(engine.step(id, &mut |_| {}), Ok(Step::Running)));
                }
                engine.cancel(id).expect("it runs");
            }
        }
    }
}

/// One read-back a round and one for the prompt, whatever the architecture, the draft and the kind of sampling.
#[test]
fn one_read_back_a_round() {
    for name in ["qwen3", "qwen3-swa", "qwen3.5", "qwen3.5-moe"] {
        let (folder, prompt) = (folder(name), prompt(name));
        for draft in ["d1", "d2"] {
            let mut engine = golden::load(
                &Reference::new(),
                &folder.join("target"),
                Some(&folder.join(draft)),
            )
            .expect("it loads")
            .engine;
            for temperature in [0.0, 1.0] {
                let before = engine.readbacks();
                let request = dflash_core::spec::Request {
                    sampling: Sampling {
                        temperature,
                        ..Sampling::default()
                    },
                    prefill_chunk: 5,
                    ..golden::request(&prompt, 40)
                };
                let report = finish(engine.as_mut(), &request).expect("it runs");
                assert!(report.rounds > 3 && report.drafted > 0);
                assert_eq!(
                    engine.readbacks() - before,
                    report.rounds as u64 + 1,
                    "{name}/{draft}"
                );
            }
        }
    }
}

/// A prompt processed with a draft attached leaves the target's state as without.
#[test]
fn a_draft_does_not_change_the_prompt() {
    for name in TARGETS {
        let backend = Reference::new();
        let (path, prompt) = (folder(name).join("target"), prompt(name));
        let plain =
            PlainStates::decode(&load_target(&backend, &path).expect("it loads"), &prompt, 1)
                .expect("it decodes");
        let fake = FakeDraft::new(&backend, Behaviour::Oracle, &prompt, &plain.tokens, 160, 8);
        for draft in [Some(fake), None] {
            let mut engine = drive::engine(&backend, &path, draft).expect("it loads");
            let id = engine
                .start(golden::request(&prompt, 5))
                .expect("it starts");
            engine.step(id, &mut |_| {}).expect("it runs");
            let state = engine.target_state(id).expect("it is running");
            none(name, &plain.differences(&backend, state).expect("it reads"));
        }
    }
}

/// Memory that no row uses is poisoned in a debug build, so that a read past the end shows.
#[cfg(debug_assertions)]
#[test]
fn unused_memory_is_poisoned() {
    let backend = Reference::new();
    let target = load_target(&backend, &folder("qwen3-swa").join("target")).expect("it loads");
    let state = prefilled(&target, &prompt("qwen3-swa")).expect("it runs");
    let LayerCache::Kv(cache) = &state.caches()[0] else {
        panic!("an attention layer")
    };
    let unused = cache.storage().unused();
    assert!(!unused.is_empty() && unused.iter().all(|n| n.is_nan()));
}
