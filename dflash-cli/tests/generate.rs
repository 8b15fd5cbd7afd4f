//! What `dflash generate` answers: texts, ids, JSON, options.

mod common;

use common::{case, cases, dflash, ended, generate, golden, run};
use serde_json::{Value, json};

/// The keys of `generate --json`, in order.
const KEYS: [&str; 27] = [
    "text",
    "tokens",
    "finish_reason",
    "prompt_tokens",
    "generation_tokens",
    "rounds",
    "drafted",
    "accepted",
    "acceptance_lengths",
    "time_to_first_token_ms",
    "prompt_tps",
    "generation_tps",
    "peak_memory_bytes",
    "backend",
    "device",
    "dtype",
    "block_size",
    "draft_requested",
    "draft_active",
    "draft_inactive_reason",
    "seed",
    "draft",
    "cache",
    "exactness",
    "near_ties",
    "non_finite_drafts",
    "notes",
];

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

fn sum(value: &Value) -> u64 {
    value
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_u64)
        .sum()
}

#[test]
fn the_first_command_of_the_readme_answers() {
    let ran = run(&[
        "generate",
        "How many positive whole-number divisors does 196 have?",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.contains("196") && ran.out.contains("divisors"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("tiny demonstration model"), "{}", ran.err);
    let last = ran.err.lines().last().expect("a closing line");
    for part in [
        " tokens · ",
        " tok/s · ",
        " tokens/round (",
        " drafted tokens accepted) · ",
        "/cpu f32",
    ] {
        assert!(last.contains(part), "{last}");
    }
}

#[test]
fn recorded_answers_with_either_draft_and_without() {
    for case in cases().iter().step_by(4) {
        for draft in ["demo:d1", "demo:d2", "none"] {
            let object =
                generate(&[&case.args()[..], &["--draft", draft, "--max-tokens", "200"]].concat());
            assert_eq!(object["text"], case.text, "{draft}: {}", case.prompt);
            assert_eq!(
                object["tokens"],
                json!(case.tokens),
                "{draft}: {}",
                case.prompt
            );
            assert_eq!(object["prompt_tokens"], case.ids.len());
            assert_eq!(object["finish_reason"], "stop");
            let drafting = draft != "none";
            assert_eq!(object["draft_active"], drafting, "{draft}");
            assert_eq!(
                object["drafted"].as_u64().is_some_and(|n| n > 0),
                drafting,
                "{draft}"
            );
        }
    }
}

#[test]
fn the_text_is_streamed_and_ends_with_a_newline() {
    let case = case("photosynthesis");
    let ran = run(&["generate", &case.prompt]);
    assert_eq!(ran.out, format!("{}\n", case.text));
    let plain = run(&["generate", &case.prompt, "--draft", "none"]);
    assert_eq!(plain.out, ran.out);
    let last = plain.err.lines().last().expect("a closing line");
    assert!(
        last.starts_with("40 tokens · ") && !last.contains("tokens/round"),
        "{last}"
    );
}

#[test]
fn the_json_object_has_the_keys_of_the_contract() {
    let prompt = case("photosynthesis").prompt;
    let object = generate(&[&prompt]);
    assert_eq!(keys(&object), KEYS);
    assert_eq!(
        keys(&object["draft"]),
        [
            "ref",
            "kind",
            "quant",
            "dtype",
            "dtype_reason",
            "context_rows",
            "cache_bytes"
        ]
    );
    assert_eq!(
        keys(&object["cache"]),
        ["kv_bytes", "recurrent_bytes", "rollbacks"]
    );
    assert_eq!(object["draft"]["ref"], "demo:d2");
    assert_eq!(object["draft"]["kind"], "dflash2");
    assert_eq!(object["exactness"], "exact");
    assert_eq!(
        (&object["draft_requested"], &object["draft_inactive_reason"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(
        sum(&object["acceptance_lengths"]) + 1,
        object["generation_tokens"].as_u64().expect("a number")
    );
    assert_eq!(
        object["acceptance_lengths"].as_array().map(Vec::len),
        object["rounds"].as_u64().map(|n| n as usize)
    );
    for measured in ["time_to_first_token_ms", "prompt_tps", "generation_tps"] {
        assert!(
            object[measured].as_f64().is_some_and(|n| n > 0.0),
            "{measured}"
        );
    }
    assert!(
        !cfg!(target_os = "linux")
            || object["peak_memory_bytes"]
                .as_u64()
                .is_some_and(|n| n > 1 << 20)
    );
    assert!(object["notes"].as_array().is_some_and(|n| {
        n.iter()
            .any(|n| n.as_str().is_some_and(|n| n.contains("demonstration")))
    }));

    let plain = generate(&[&prompt, "--draft", "none"]);
    assert_eq!(keys(&plain), KEYS);
    assert_eq!(
        (
            &plain["draft"],
            &plain["draft_requested"],
            &plain["drafted"]
        ),
        (&Value::Null, &json!(false), &json!(0))
    );
    assert_eq!(
        plain["rounds"].as_u64().map(|n| n + 1),
        plain["generation_tokens"].as_u64()
    );
    assert!(
        plain["acceptance_lengths"]
            .as_array()
            .is_some_and(|l| l.iter().all(|n| *n == 1))
    );
}

#[test]
fn what_was_not_measured_is_null() {
    let object = generate(&["x", "--max-tokens", "1"]);
    assert_eq!(
        (&object["generation_tokens"], &object["rounds"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(object["generation_tps"], Value::Null);
    assert_eq!(object["finish_reason"], "length");
}

#[test]
fn exactly_max_tokens() {
    let case = case("quicksort");
    for limit in [2, 3, 7, 8, 9, 16] {
        let object = generate(&[&case.prompt, "--max-tokens", &limit.to_string()]);
        assert_eq!(object["tokens"], json!(case.tokens[..limit]), "{limit}");
        assert_eq!(object["finish_reason"], "length");
    }
}

#[test]
fn block_sizes_and_chunks_change_no_text() {
    let case = case("quicksort");
    for block in ["1", "2", "5", "8"] {
        let object = generate(&[&case.prompt, "--block-size", block, "--prefill-chunk", "7"]);
        assert_eq!(object["tokens"], json!(case.tokens), "{block}");
        assert_eq!(object["block_size"].to_string(), block);
    }
}

#[test]
fn a_seed_gives_the_same_text_with_and_without_a_draft() {
    let sampled = |draft: &str, seed: &str| {
        let options = [
            "--temperature",
            "1.5",
            "--top-p",
            "0.98",
            "--top-k",
            "200",
            "--min-p",
            "0.001",
            "--max-tokens",
            "40",
            "--ignore-eos",
        ];
        let object = generate(
            &[
                &[
                    "Describe a rainbow in one sentence.",
                    "--seed",
                    seed,
                    "--draft",
                    draft,
                ],
                &options[..],
            ]
            .concat(),
        );
        assert_eq!(object["seed"].to_string(), seed);
        object["tokens"].clone()
    };
    let text = sampled("demo:d2", "7");
    assert_eq!(sampled("none", "7"), text);
    assert_eq!(sampled("demo:d1", "7"), text);
    assert_ne!(sampled("none", "8"), text);
}

#[test]
fn stop_strings_cut_the_text_before_them() {
    let case = case("quicksort");
    let at = case.text.find("return").expect("a return");
    let object = generate(&[&case.prompt, "--stop", "return", "--stop", "no such text"]);
    assert_eq!(object["text"], case.text[..at]);
    assert_eq!(object["finish_reason"], "stop_string");
    let tokens = object["tokens"].as_array().expect("tokens").len();
    assert_eq!(object["tokens"], json!(case.tokens[..tokens]));
    let ran = run(&["generate", &case.prompt, "--stop", "return"]);
    assert_eq!(
        ran.out.trim_end_matches('\n'),
        case.text[..at].trim_end_matches('\n')
    );
}

#[test]
fn end_tokens_are_ignored_on_request() {
    let case = case("photosynthesis");
    let object = generate(&[&case.prompt, "--ignore-eos", "--max-tokens", "60"]);
    assert_eq!(
        (&object["generation_tokens"], &object["finish_reason"]),
        (&json!(60), &json!("length"))
    );
    assert_eq!(
        object["tokens"]
            .as_array()
            .map(|t| t[..case.tokens.len()].to_vec()),
        json!(case.tokens).as_array().cloned()
    );
}

#[test]
fn ids_in_place_of_a_text() {
    let case = case("photosynthesis");
    let object = generate(&["--prompt-ids", &case.id_list()]);
    assert_eq!(
        (&object["tokens"], &object["text"]),
        (&json!(case.tokens), &json!(case.text))
    );
}

#[test]
fn a_model_without_a_tokenizer_takes_ids_and_gives_no_text() {
    let (target, draft) = (golden("qwen3/target"), golden("qwen3/d2"));
    let ids = [
        "--prompt-ids",
        "5,6,7",
        "--max-tokens",
        "12",
        "--ignore-eos",
    ];
    let object = generate(&[&["--model", &target, "--draft", &draft], &ids[..]].concat());
    assert_eq!(
        (&object["text"], &object["generation_tokens"]),
        (&json!(""), &json!(12))
    );
    assert!(object["drafted"].as_u64().is_some_and(|n| n > 0));
    let ran = run(&[&["generate", "--model", &target], &ids[..]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert!(ran.err.contains("no draft was given"), "{}", ran.err);
}

#[test]
fn the_prompt_from_standard_input() {
    let case = case("photosynthesis");
    for input in [
        case.prompt.clone(),
        format!("{}\n", case.prompt),
        format!("{}\r\n", case.prompt),
    ] {
        let ran = ended(dflash().args(["generate", "-"]).write_stdin(input));
        assert_eq!(ran.out.trim_end(), case.text, "{}", ran.err);
    }
}

#[test]
fn a_raw_prompt_is_not_wrapped() {
    let case = case("photosynthesis");
    let chat = format!(
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        case.prompt
    );
    let object = generate(&["--raw", &chat]);
    assert_eq!(
        (&object["text"], &object["prompt_tokens"]),
        (&json!(case.text), &json!(case.ids.len()))
    );
    let bare = generate(&["--raw", &case.prompt, "--max-tokens", "1"]);
    assert!(
        bare["prompt_tokens"]
            .as_u64()
            .is_some_and(|n| n < case.ids.len() as u64)
    );
}

#[test]
fn a_chat_template_of_ones_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("template.jinja");
    std::fs::write(
        &file,
        "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant{{ '\n' }}",
    )
    .expect("a file");
    let case = case("photosynthesis");
    let object = generate(&[
        &case.prompt,
        "--chat-template",
        file.to_str().expect("UTF-8"),
    ]);
    assert_eq!(
        (&object["text"], &object["prompt_tokens"]),
        (&json!(case.text), &json!(case.ids.len()))
    );
}

#[test]
fn a_template_without_a_reasoning_switch_says_so() {
    let ran = run(&["generate", "What is a prime number?", "--reasoning", "off"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err
            .contains("note: the chat template has no switch for reasoning"),
        "{}",
        ran.err
    );
}

#[test]
fn options_of_the_draft_without_a_draft_are_noted() {
    let ran = run(&[
        "generate",
        "x",
        "--draft",
        "none",
        "--max-tokens",
        "2",
        "--draft-window",
        "9",
    ]);
    assert!(
        ran.err.contains("note: `--draft-window` has no effect"),
        "{}",
        ran.err
    );
}

#[test]
fn a_trace_holds_a_line_per_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.jsonl");
    let object = generate(&[
        &case("quicksort").prompt,
        "--trace",
        file.to_str().expect("UTF-8"),
    ]);
    let text = std::fs::read_to_string(&file).expect("the trace");
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    assert_eq!(Some(lines.len() as u64), object["rounds"].as_u64());
    let total = |key: &str| lines.iter().filter_map(|l| l[key].as_u64()).sum::<u64>();
    assert_eq!(Some(total("accepted")), object["accepted"].as_u64());
    assert_eq!(Some(total("drafted")), object["drafted"].as_u64());
    assert_eq!(
        total("produced") + 1,
        object["generation_tokens"].as_u64().expect("a number")
    );
    for line in &lines {
        let expected = [
            "round",
            "context",
            "width",
            "drafted",
            "accepted",
            "produced",
            "near_ties",
            "draft_ms",
            "verify_ms",
            "commit_ms",
            "host_ms",
            "notes",
        ];
        assert_eq!(keys(line), expected);
        assert!(line["verify_ms"].as_f64().is_some_and(|n| n > 0.0));
    }
}

#[test]
fn verbose_runs_say_what_was_loaded() {
    let ran = run(&["generate", "x", "--max-tokens", "3", "-vv"]);
    for part in [
        "backend ",
        "cache  ",
        "cannot be trimmed",
        "draft  ",
        "operations  native",
        "round 1: ",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(
        !run(&["generate", "x", "--max-tokens", "3"])
            .err
            .contains("round 1")
    );
}

#[test]
fn a_required_draft_that_is_used() {
    let object = generate(&[
        "x",
        "--require-draft",
        "--max-tokens",
        "9",
        "--backend",
        "reference",
        "--adaptive",
        "off",
    ]);
    assert_eq!(
        (&object["draft_active"], &object["backend"]),
        (&json!(true), &json!("reference"))
    );
}
