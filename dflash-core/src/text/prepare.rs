//! Rewrites what the template engine does not know into what it knows.

/// The engine's equivalent of a block that only marks the assistant's words, for training: a scope of its own.
const OPEN: (&str, &str) = ("generation", "with");
const CLOSE: (&str, &str) = ("endgeneration", "endwith");

/// The template as the engine reads it: line ends as Jinja normalizes them, and no tags that only transformers knows.
pub(super) fn prepared(source: &str) -> String {
    without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, wherever they are tags and not text or strings.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (text, from_brace) = rest.split_at(at);
        out.push_str(text);
        let len = match from_brace.as_bytes().get(1) {
            Some(b'#') => from_brace
                .find("#}")
                .map_or(from_brace.len(), |end| end + 2),
            Some(b'{') => tag_len(from_brace, "}}"),
            Some(b'%') => tag_len(from_brace, "%}"),
            _ => 1,
        };
        let (tag, after) = from_brace.split_at(len);
        rest = after;
        match tag_name(tag) {
            Some(name) if name == OPEN.0 => out.push_str(&tag.replacen(OPEN.0, OPEN.1, 1)),
            Some(name) if name == CLOSE.0 => out.push_str(&tag.replacen(CLOSE.0, CLOSE.1, 1)),
            Some("raw") => {
                let end = raw_len(rest);
                out.push_str(tag);
                // Jinja trims the newline after every tag but this one.
                if rest[..end].starts_with('\n') && !tag.ends_with("-%}") {
                    out.push_str("{% endraw %}{{ '\\n' }}");
                    out.push_str("{% raw %}");
                }
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(tag),
        }
    }
    out + rest
}

/// The length of a tag up to and with its end, which strings inside it may contain.
fn tag_len(tag: &str, end: &str) -> usize {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in tag.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if tag[at..].starts_with(end) => return at + end.len(),
            None => {}
        }
    }
    tag.len()
}

/// The only word of a `{% … %}` tag.
fn tag_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner).trim();
    (!inner.is_empty() && inner.bytes().all(|b| b.is_ascii_lowercase())).then_some(inner)
}

/// The length of what `{% raw %}` protects.
fn raw_len(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let at = from + at;
        let len = text[at..].find("%}").map_or(text.len() - at, |end| end + 2);
        if tag_name(&text[at..at + len]) == Some("endraw") {
            return at;
        }
        from = at + 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::prepared;

    #[test]
    fn only_tags_are_replaced() {
        assert_eq!(
            prepared("a{% generation %}b{%- endgeneration -%}c"),
            "a{% with %}b{%- endwith -%}c"
        );
        for same in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            r#"{{ "\"{% generation %}" }}"#,
            "{% raw %}{% generation %}{% endraw %}",
            "{% if generation %}{% endif %}{generation}",
            "{% set x = '%} {% generation %}' %}",
            "{% generation",
            "{{",
            "{",
        ] {
            assert_eq!(prepared(same), same);
        }
    }
}
