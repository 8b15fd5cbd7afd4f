//! What the command line of `compare` means, and the prompts that it brings along.

use dflash::compare::CompareOptions;
use dflash::{Error, Request, Result};
use dflash_core::load::ModelFiles;

use crate::args::CompareArgs;
use crate::commands::generate::prompt::encode;
use crate::settings::{Prompt, check_draft, load_options, request, token_ids};

/// Asked when no prompt is given: arithmetic, code, prose.
const PROMPTS: [&str; 3] = [
    "What is 12 + 30?",
    "Write a Python function that reverses a string.",
    "Why is the sky blue? Answer in two sentences.",
];

/// Asked of a model without a tokenizer: so many texts of so many ids.
const ID_PROMPTS: [usize; 2] = [7, 24];

/// A comparison, as it was asked for.
#[derive(Debug)]
pub(super) struct CompareSettings {
    pub(super) options: CompareOptions,
    pub(super) prompts: Prompts,
    pub(super) require_draft: bool,
    pub(super) format: Format,
    pub(super) verbose: u8,
    pub(super) notes: Vec<String>,
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    Markdown,
}

/// Prompts that are not encoded yet, and the request that they share.
#[derive(Debug)]
pub(super) struct Prompts {
    given: Vec<Prompt>,
    raw: bool,
    request: Request,
}

impl CompareSettings {
    pub(super) fn new(args: CompareArgs) -> Result<Self> {
        let mut notes = Vec::new();
        if args.model.backend != "auto" {
            let hint = format!("use `--backends {}`", args.model.backend);
            return Err(Error::request("backend", "`compare` takes a list").with_hint(&hint));
        }
        if args.run.trace.is_some() {
            let reason = "`compare` writes no trace";
            return Err(Error::request("trace", reason).with_hint("use `dflash generate --trace`"));
        }
        let request = request(&args.run)?;
        let load = load_options(&args.model, &mut notes)?;
        check_draft(args.model.require_draft, &load, &request, &mut notes)?;
        let ids = args
            .prompt_ids
            .iter()
            .map(|list| token_ids(list).map(Prompt::Ids));
        let texts = args.prompts.iter().map(|text| {
            if text.is_empty() {
                let reason = "it is empty, expected at least one character";
                return Err(Error::request("prompt", reason));
            }
            Ok(chat_or_raw(text, args.raw))
        });
        let format = match (args.json, args.markdown) {
            (true, _) => Format::Json,
            (_, true) => Format::Markdown,
            _ => Format::Text,
        };
        Ok(Self {
            prompts: Prompts {
                given: ids.chain(texts).collect::<Result<_>>()?,
                raw: args.raw,
                request,
            },
            options: CompareOptions {
                load,
                backends: args.backends,
                requests: Vec::new(),
                ignore_end: args.run.ignore_eos,
            },
            require_draft: args.model.require_draft,
            format,
            verbose: args.run.verbose,
            notes,
        })
    }
}

fn chat_or_raw(text: &str, raw: bool) -> Prompt {
    if raw {
        Prompt::Raw(text.to_owned())
    } else {
        Prompt::Chat {
            text: text.to_owned(),
            system: None,
            reasoning: None,
            template: None,
        }
    }
}

impl Prompts {
    /// Encodes the prompts into requests. Returns what to call them.
    pub(super) fn encode(
        self,
        options: &mut CompareOptions,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>> {
        let files = ModelFiles::open(&options.load.model)?;
        let tokenizer = files.tokenizer()?;
        let mut prompts = self.given;
        if prompts.is_empty() {
            prompts = match &tokenizer {
                Some(_) => PROMPTS.map(|text| chat_or_raw(text, self.raw)).into(),
                None => {
                    notes.push(
                        "no prompt was given and the model has no tokenizer, so any token ids are the prompts"
                            .into(),
                    );
                    let vocab = files.target_config()?.vocab_size;
                    ID_PROMPTS
                        .map(|count| Prompt::Ids(any_ids(count, vocab)))
                        .into()
                }
            };
        }
        let mut labels = Vec::new();
        for prompt in prompts {
            let label = match &prompt {
                Prompt::Ids(ids) => format!("{} ids", ids.len()),
                Prompt::Raw(text) | Prompt::Chat { text, .. } => text.clone(),
            };
            let mut own = Vec::new();
            let prompt = encode(prompt, tokenizer.as_ref(), &mut own)?;
            // Each prompt has the same to say of the template.
            own.retain(|note| !notes.contains(note));
            notes.extend(own);
            options.requests.push(Request {
                prompt,
                ..self.request.clone()
            });
            labels.push(label);
        }
        Ok(labels)
    }
}

/// Ids spread over a vocabulary, the same ones every time.
fn any_ids(count: usize, vocab: usize) -> Vec<u32> {
    let vocab = u32::try_from(vocab).unwrap_or(u32::MAX).max(1);
    (0u32..)
        .take(count)
        .map(|i| (i * i * 31 + i * 7 + 5) % vocab)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::any_ids;

    #[test]
    fn ids_stay_inside_the_vocabulary() {
        for vocab in [1, 7, 61, 150_000] {
            let ids = any_ids(24, vocab);
            assert!(ids.len() == 24 && ids.iter().all(|id| (*id as usize) < vocab));
        }
    }
}
