//! Templates that go wrong, options that templates do not know, and stop strings.
#![cfg(feature = "text")]
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use dflash_core::text::{ChatTemplate, Reasoning, StopStrings, TemplateOptions};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn render(source: &str, messages: &Value) -> dflash_core::Result<String> {
    ChatTemplate::parse(source)?.render(messages, &Map::new(), &TemplateOptions::default())
}

fn message(source: &str) -> String {
    let error = render(source, &json!([{"role": "user", "content": "hi"}])).unwrap_err();
    assert_eq!(error.code(), "E-TEMPLATE");
    error.to_string()
}

#[test]
fn errors_name_their_line_and_refusals_speak_for_themselves() {
    assert!(
        message("a\n\n{% if %}").starts_with("chat template: line 3: syntax error"),
        "{}",
        message("a\n\n{% if %}")
    );
    assert!(
        message("a\n{{ x.y }}").starts_with("chat template: line 2: undefined value"),
        "{}",
        message("a\n{{ x.y }}")
    );
    assert!(message("{{ 1 | nope }}").contains("nope"));
    assert_eq!(
        message("{{ raise_exception('no <b> please') }}"),
        "chat template: refuses this conversation: no <b> please"
    );
    // Out of a macro, a filter argument, a loop.
    let inside = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% for x in messages %}{{ m() | trim }}{% endfor %}";
    assert_eq!(
        message(inside),
        "chat template: refuses this conversation: deep"
    );
    assert!(message("{{ strftime_now('%~') }}").contains("%~"));
}

#[test]
fn hostile_templates_end_with_an_error() {
    for endless in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(99999999999) | list | length }}",
        "{{ 'x' * 99999999999 }}",
        "{{ ('x' * 99999999) * 99999 }}",
        "{{ [0] * 999999999 }}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=['x']) %}{% for i in range(30) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=['x']) %}{% for i in range(30) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | tojson }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ 'x' | indent(99999999999, true) }}",
        "{{ 'aaaa'.replace('a', 'b' * 9999999).replace('b', 'c' * 9999999) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 2 ** 99999999 }}",
        "{{ messages | tojson(indent=999999999) | length * (1 / 0) }}",
    ] {
        message(endless);
    }
    assert!(
        message("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}")
            .contains("too much work")
    );
    let deep = "(".repeat(100_000) + &")".repeat(100_000);
    message(&format!("{{{{ {deep} }}}}"));
    message(&"{% if true %}".repeat(10_000));
    let mut nested = json!("x");
    for _ in 0..100 {
        nested = json!([nested]);
    }
    assert!(render("{{ messages | tojson }}", &nested).is_ok());
    for _ in 0..100 {
        nested = json!([nested]);
    }
    assert!(
        render("{{ messages | tojson }}", &nested)
            .unwrap_err()
            .to_string()
            .contains("levels deep")
    );
}

#[test]
fn long_conversations_are_no_hostility() {
    let messages: Vec<Value> = (0..5000)
        .map(|n| json!({"role": "user", "content": format!("{n} {}", "word ".repeat(100))}))
        .collect();
    let source = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/templates/qwen3-thinking.jinja"
    ));
    let text = render(&source.unwrap(), &json!(messages)).unwrap();
    assert!(text.len() > 2_500_000);
}

proptest! {
    #[test]
    fn no_template_makes_the_parser_panic(source in "(\\{%|%\\}|\\{\\{|\\}\\}|\\{#|#\\}|-|raw|endraw|generation|if|for|in|x|'|\"|\\\\|\n| |\\||1|é){0,24}") {
        let _ = render(&source, &json!([]));
    }
}

#[test]
fn reasoning_sets_what_the_template_reads_and_says_so_otherwise() {
    let set = |source: &str, reasoning: &str| {
        let template = ChatTemplate::parse(source).unwrap();
        let mut options = TemplateOptions::default();
        let note = options.set_reasoning(&reasoning.parse::<Reasoning>().unwrap(), &template);
        (
            template.render(&json!([]), &Map::new(), &options).unwrap(),
            note,
        )
    };
    let switch = "{{ enable_thinking is defined and enable_thinking }}";
    assert_eq!(set(switch, "on"), ("True".into(), None));
    assert_eq!(set(switch, "off"), ("False".into(), None));
    assert_eq!(set("{{ thinking }}", "off"), ("False".into(), None));
    let (text, note) = set(switch, "high");
    assert_eq!(text, "True");
    assert!(note.unwrap().contains("no levels"));
    assert_eq!(set("{{ reasoning_effort }}", "low"), ("low".into(), None));
    assert_eq!(set("{{ reasoning_strength }}", "low"), ("low".into(), None));
    assert!(
        set("{{ reasoning_effort | default('x') }}", "off")
            .1
            .unwrap()
            .contains("no switch for it")
    );
    assert_eq!(
        set("plain", "on").1.unwrap(),
        "the chat template has no switch for reasoning"
    );
    // A variable of the template's own is no switch.
    assert!(
        set("{% set enable_thinking = 1 %}{{ enable_thinking }}", "on")
            .1
            .is_some()
    );
    for wrong in ["", "very high", "<s>"] {
        assert_eq!(wrong.parse::<Reasoning>().unwrap_err().code(), "E-REQUEST");
    }
}

fn stops(stops: &[&str]) -> StopStrings {
    StopStrings::new(stops.iter().map(|s| (*s).to_owned()).collect()).unwrap()
}

#[test]
fn text_ends_before_the_stop_string() {
    let mut stop = stops(&["\n\nQ:", "END"]);
    assert_eq!(
        (stop.feed("one\n").text.as_str(), stop.is_hit()),
        ("one", false),
        "held: it may go on"
    );
    assert_eq!(stop.feed("two\n\n").text, "\ntwo");
    assert_eq!(stop.feed("R").text, "\n\nR");
    let hit = stop.feed("xEN");
    assert_eq!((hit.text.as_str(), hit.hit), ("x", false));
    let hit = stop.feed("D and more");
    assert_eq!((hit.text.as_str(), hit.hit), ("", true));
    assert_eq!(
        (stop.feed("END").text, stop.finish()),
        (String::new(), String::new())
    );

    let mut at_start = stops(&["é"]);
    assert!(at_start.feed("é").hit);
    let mut never = stops(&["abc"]);
    assert_eq!(
        never.feed("ab").text + &never.finish(),
        "ab",
        "nothing is lost at the end"
    );
    let mut none = stops(&[]);
    assert_eq!(none.feed("anything").text, "anything");
    assert_eq!(
        StopStrings::new(vec![String::new()]).unwrap_err().code(),
        "E-REQUEST"
    );
}

proptest! {
    /// However a text is cut into pieces, it ends at the stop string that is complete first.
    #[test]
    fn pieces_do_not_matter(
        pieces in prop::collection::vec("[abé]{0,3}", 0..12),
        stop in prop::collection::vec("[abé]{1,4}", 0..4),
    ) {
        let text = pieces.concat();
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        let first = ends.filter_map(|end| {
            let longest = stop.iter().filter(|s| text[..end].ends_with(s.as_str())).map(String::len).max();
            longest.map(|len| end - len)
        });
        let expected = first.clone().next().map_or(text.as_str(), |start| &text[..start]);
        let mut stops = StopStrings::new(stop.clone()).unwrap();
        let mut given = String::new();
        for piece in &pieces {
            given += &stops.feed(piece).text;
            // Never holds back what cannot become a stop string any more.
            let longest = stop.iter().map(String::len).max().unwrap_or(0);
            prop_assert!(stops.clone().finish().len() < longest.max(1));
        }
        prop_assert_eq!(stops.is_hit(), first.clone().next().is_some());
        given += &stops.finish();
        prop_assert_eq!(given, expected);
    }
}

/// Each of these would overflow the parser's stack if it were parsed.
#[test]
fn deep_templates_are_refused() {
    let hostile = [
        format!("{{{{ {}1 }}}}", "not ".repeat(20_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(20_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
    ];
    for source in hostile {
        let error = ChatTemplate::parse(&source).expect_err("too deep");
        assert_eq!(error.code(), "E-TEMPLATE", "{error}");
    }
    let bearable = format!("{{{{ {}1 }}}}", "-".repeat(8000));
    assert!(ChatTemplate::parse(&bearable).is_ok());
    let long_text = format!("{{% set system = '{}' %}}", "words ".repeat(20_000));
    assert!(ChatTemplate::parse(&long_text).is_ok());
}
