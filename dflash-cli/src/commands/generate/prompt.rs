//! From what was written to the ids that the model sees.

use dflash::text::{Message, TemplateOptions, Tokenizer};
use dflash::{Error, Result};

use crate::settings::Prompt;

/// Encodes the prompt.
///
/// A model without a chat template gets the text as it is, with a note, unless something was asked
/// that only a template can do.
pub(crate) fn encode(
    prompt: Prompt,
    tokenizer: Option<&Tokenizer>,
    notes: &mut Vec<String>,
) -> Result<Vec<u32>> {
    let (text, system, reasoning, template) = match prompt {
        Prompt::Ids(ids) => return Ok(ids),
        Prompt::Raw(text) => return needed(tokenizer)?.encode_raw(&text),
        Prompt::Chat {
            text,
            system,
            reasoning,
            template,
        } => (text, system, reasoning, template),
    };
    let mut tokenizer = needed(tokenizer)?.clone();
    if let Some(source) = &template {
        tokenizer = tokenizer.with_chat_template(source)?;
    }
    let Some(template) = tokenizer.chat_template() else {
        for (option, given) in [
            ("system", system.is_some()),
            ("reasoning", reasoning.is_some()),
        ] {
            if given {
                let hint = "give a template with `--chat-template FILE`";
                return Err(
                    Error::request(option, "this model has no chat template").with_hint(hint)
                );
            }
        }
        notes.push("the model has no chat template, so the prompt is taken as it is".into());
        return tokenizer.encode_raw(&text);
    };
    let mut options = TemplateOptions {
        add_generation_prompt: true,
        ..TemplateOptions::default()
    };
    if let Some(reasoning) = &reasoning {
        notes.extend(options.set_reasoning(reasoning, template));
    }
    let system = system.map(|text| Message::new("system", text));
    let messages: Vec<_> = system
        .into_iter()
        .chain([Message::new("user", text)])
        .collect();
    let encoded = tokenizer.encode_chat(&messages, &options)?;
    notes.extend(encoded.notes);
    Ok(encoded.ids)
}

fn needed(tokenizer: Option<&Tokenizer>) -> Result<&Tokenizer> {
    tokenizer.ok_or_else(|| {
        let hint = "put tokenizer.json beside the model, or give ids with `--prompt-ids`";
        Error::request(
            "prompt",
            "this model has no tokenizer to encode a text with",
        )
        .with_hint(hint)
    })
}
