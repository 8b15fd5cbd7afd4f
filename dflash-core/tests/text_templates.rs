//! Chat templates against strings that Python's transformers made: see templates/README.md.
#![cfg(feature = "text")]
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::Path;

use dflash_core::text::{ChatTemplate, Clock, Message, TemplateOptions, Tokenizer};
use serde_json::{Map, Value, json};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

fn clock(value: &Value) -> Option<Clock> {
    let offset = i32::try_from(value["offset"].as_i64().unwrap()).unwrap();
    Some(Clock {
        seconds: value["seconds"].as_i64().unwrap(),
        offset,
    })
}

/// Ten templates, some twenty conversations each, with and without tools, generation prompt and reasoning.
#[test]
fn ten_templates_render_as_in_python() {
    let data = read("cases.json");
    let vocabulary = json!({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}});
    let vocabulary = serde_json::to_vec(&vocabulary).unwrap();
    let mut wrong = Vec::new();
    let cases = data["cases"].as_array().unwrap();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let source = std::fs::read_to_string(folder().join(format!("{name}.jinja"))).unwrap();
        let config = serde_json::to_vec(&data["tokens"][name]).unwrap();
        let tokenizer = Tokenizer::from_bytes(&vocabulary, Some(&config), Some(&source)).unwrap();
        let conversation = case["conversation"].as_str().unwrap();
        let messages: Vec<Message> =
            serde_json::from_value(data["conversations"][conversation].clone()).unwrap();
        let mut options = TemplateOptions {
            now: clock(&data["now"]),
            ..TemplateOptions::default()
        };
        for (key, value) in case["options"].as_object().unwrap() {
            match key.as_str() {
                "add_generation_prompt" => options.add_generation_prompt = value.as_bool().unwrap(),
                "enable_thinking" => options.enable_thinking = value.as_bool(),
                "reasoning_effort" => options.reasoning_effort = value.as_str().map(str::to_owned),
                "tools" => options.tools = Some(data["tools"].clone()),
                _ => drop(options.extra.insert(key.clone(), value.clone())),
            }
        }
        let rendered = tokenizer.render_chat(&messages, &options);
        let right = match (
            &rendered,
            case["expected"].as_str(),
            case["refused"].as_str(),
        ) {
            (Ok(text), Some(expected), _) => text == expected,
            (Err(error), None, Some(refusal)) => {
                error.to_string() == format!("chat template: refuses this conversation: {refusal}")
            }
            (Err(error), None, None) => {
                error.code() == "E-TEMPLATE" && error.to_string().contains("line ")
            }
            _ => false,
        };
        if !right {
            wrong.push(format!(
                "{name} / {conversation} / {}\n{rendered:?}\nexpected {case}",
                case["options"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n\n")
    );
    assert!(cases.len() > 400);
}

/// Where the engine answers otherwise than Python; published templates use none of these.
const DIFFERENT: [&str; 47] = [
    // Floats with an exponent inside lists and concatenations; alone and as JSON they are right.
    r#"{{ big ~ '' }}"#,
    r#"{{ small ~ '' }}"#,
    r#"{{ {'x': small} ~ '' }}"#,
    r#"{{ [1.0, 1e20] | join(' ') }}"#,
    // Formatting with `%` is refused (the filter `format` works), and so is `!r` in `str.format`.
    r#"{{ '%s-%d-%.2f' % ('a', 3, 2.5) }}"#,
    r#"{{ '%s' % 'x' }}"#,
    r#"{{ '%5.1f' % f }}"#,
    r#"{{ 'x%s' % n }}"#,
    r#"{{ "%d%%" % 50 }}"#,
    r#"{{ '%02d' % 7 }}"#,
    r#"{{ '%x' % 255 }}"#,
    r#"{{ '%5s|%-5s|' % ('a', 'b') }}"#,
    r#"{{ '%r' % 'x' }}"#,
    r#"{{ '{:>5}|{:.2f}|{!r}'.format('a', 1.5, 'x') }}"#,
    // Methods, filters and functions that are missing, with an error that names them.
    r#"{{ 'aB'.swapcase() }}"#,
    r#"{{ 'x'.zfill(3) }}"#,
    r#"{{ 'x'.center(4) }}|"#,
    r#"{{ html | urlencode }}"#,
    r#"{{ 'a b c' | wordcount }}"#,
    r#"{{ 'abcdefghij' | truncate(8) }}"#,
    r#"{{ 'ab' | center(6) }}"#,
    r#"{{ 'a b' | wordwrap(1) }}"#,
    r#"{{ d | xmlattr }}"#,
    r#"{{ l | random is defined }}"#,
    r#"{{ 10 | filesizeformat }}"#,
    r#"{{ d | dictsort(true) | map('first') | list }}"#,
    r#"{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}"#,
    // How Python shows its own objects.
    r#"{{ range(3) }}"#,
    r#"{{ d.keys() }}"#,
    r#"{{ d.values() }}"#,
    r#"{{ d.items() }}"#,
    r#"{{ namespace(a=1) }}"#,
    r#"{{ l | pprint }}"#,
    r#"{{ d | pprint }}"#,
    r#"{{ ['a"b', "it's", "both'\"", 'new\nline', 'é漢\u200b\x00'] }}"#,
    // Methods and built-in names as values.
    r#"{{ lipsum is defined }}"#,
    r#"{{ self is defined }}"#,
    r#"{{ 'x'.upper is defined }}"#,
    r#"{{ d.get is defined }}"#,
    // Views of a dict count as sequences, since slices of a list must.
    r#"{{ (l | map('string')) is sequence }}"#,
    r#"{{ d.items() is sequence }}"#,
    r#"{{ d.keys() is sequence }}"#,
    // More is accepted than in Python.
    r#"{% for x in n %}{% endfor %}"#,
    r#"{{ 'a' < 1 }}"#,
    r#"{{ d | dictsort(by='value') | length }}"#,
    // Oddities.
    r#"{{ ('<' | e) + '<' }}"#,
    r#"{{ 'a\
b' }}"#,
];

/// Single expressions and statements: what Python refuses must be refused, and the rest must print the same.
#[test]
fn fragments_render_as_in_python() {
    let data = read("fragments.json");
    let mut wrong = Vec::new();
    let fragments = data["fragments"].as_array().unwrap();
    let mut different = 0;
    for fragment in fragments {
        let source = fragment["template"].as_str().unwrap();
        let extra = data["variables"].as_object().unwrap().clone();
        let options = TemplateOptions {
            now: clock(&data["now"]),
            extra,
            ..TemplateOptions::default()
        };
        let rendered = ChatTemplate::parse(source)
            .and_then(|t| t.render(&data["messages"], &Map::new(), &options));
        let right = match (&rendered, fragment["expected"].as_str()) {
            (Ok(text), Some(expected)) => text == expected,
            (Err(error), None) => error.code() == "E-TEMPLATE",
            _ => false,
        };
        let known = DIFFERENT.contains(&source);
        different += usize::from(known);
        if right == known {
            let expected = fragment["expected"]
                .as_str()
                .or(fragment["error"].as_str())
                .unwrap();
            wrong.push(format!(
                "{source}\n   here {rendered:?}\n python {expected:?}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        fragments.len(),
        wrong.join("\n")
    );
    assert!(fragments.len() > 500);
    assert_eq!(
        different,
        DIFFERENT.len(),
        "every known difference is among the fragments"
    );
}
