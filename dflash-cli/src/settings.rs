//! What the command line means: every option checked before anything is loaded.

use std::io::Read;
use std::path::{Path, PathBuf};

use dflash::text::Reasoning;
use dflash::{
    BackendChoice, DType, DeviceClass, DraftQuant, Error, KernelSwitches, LoadOptions, ModelSource,
    Request, Result, Sampling, resolve,
};

use crate::args::{Device, Format, GenerateArgs, ModelArgs, RunArgs, Switch};

/// A generation, as it was asked for.
#[derive(Debug)]
pub(crate) struct GenerateSettings {
    pub(crate) load: LoadOptions,
    pub(crate) require_draft: bool,
    pub(crate) prompt: Prompt,
    /// Everything but the prompt and the end ids, which need the model.
    pub(crate) request: Request,
    pub(crate) ignore_eos: bool,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) verbose: u8,
    pub(crate) notes: Vec<String>,
}

/// Where the prompt's ids come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// Given as ids.
    Ids(Vec<u32>),
    /// Encoded as it is.
    Raw(String),
    /// A question in the model's chat format.
    Chat {
        text: String,
        system: Option<String>,
        reasoning: Option<Reasoning>,
        template: Option<String>,
    },
}

impl GenerateSettings {
    /// Checks the options; reads standard input last, so that no wrong option waits for it.
    pub(crate) fn new(args: GenerateArgs) -> Result<Self> {
        let mut notes = Vec::new();
        let request = request(&args.run)?;
        let load = load_options(&args.model, &mut notes)?;
        check_draft(args.model.require_draft, &load, &request, &mut notes)?;
        let (require_draft, ignore_eos, json, verbose) = (
            args.model.require_draft,
            args.run.ignore_eos,
            args.json,
            args.run.verbose,
        );
        let trace = args.run.trace.clone();
        Ok(Self {
            load,
            require_draft,
            prompt: prompt(args)?,
            request,
            ignore_eos,
            trace,
            json,
            verbose,
            notes,
        })
    }
}

/// Refuses `--require-draft` where none can be used, and notes options that have no effect without one.
pub(crate) fn check_draft(
    required: bool,
    load: &LoadOptions,
    request: &Request,
    notes: &mut Vec<String>,
) -> Result<()> {
    if required && load.draft.is_none() {
        let reason = "plain decoding was asked for, or no draft was given";
        return Err(
            Error::request("require-draft", reason).with_hint("give the draft with `--draft REF`")
        );
    }
    if required && request.block_size == Some(1) {
        return Err(
            Error::request("require-draft", "blocks of one row decode plainly")
                .with_hint("use `--block-size 2` or more"),
        );
    }
    if load.draft.is_none() {
        let idle = [
            ("--draft-window", load.draft_window.is_some()),
            (
                "--draft-quant",
                matches!(load.draft_quant, DraftQuant::Packed(_)),
            ),
            ("--block-size", request.block_size.is_some()),
        ];
        notes.extend(
            idle.iter()
                .filter(|(_, given)| *given)
                .map(|(name, _)| format!("`{name}` has no effect without a draft")),
        );
    }
    Ok(())
}

/// Resolves the models and translates the options of loading.
pub(crate) fn load_options(args: &ModelArgs, notes: &mut Vec<String>) -> Result<LoadOptions> {
    let model = match &args.model {
        Some(reference) => resolve(reference)?,
        None => default_model()?,
    };
    if let Some(note) = demo_note(&model) {
        notes.push(note);
    }
    let draft = match args.draft.as_deref() {
        Some("none") => None,
        Some(reference) => Some(resolve(reference)?),
        None => default_draft(&model),
    };
    if draft.is_none() && args.draft.is_none() {
        notes.push(
            "no draft was given, so this is plain decoding; `--draft REF` makes it faster".into(),
        );
    }
    if args.draft_window.is_some_and(|n| n < 2) {
        return Err(Error::request("draft-window", "expected at least 2")
            .with_hint("N keeps the newest N-1 rows"));
    }
    if args.threads == Some(0) {
        return Err(Error::request(
            "threads",
            "0 is out of range, expected at least 1",
        ));
    }
    let draft_quant = args.draft_quant.parse()?;
    let kernels = KernelSwitches::all_but(&args.kernels_off)?;
    let backend = match args.backend.as_str() {
        "auto" => BackendChoice::Auto,
        name => BackendChoice::Named(name.into()),
    };
    let device = match args.device {
        Device::Auto => None,
        Device::Cpu => Some(DeviceClass::Cpu),
        Device::Gpu => Some(DeviceClass::Gpu),
    };
    let dtype = match args.dtype {
        Format::Auto => None,
        Format::F32 => Some(DType::F32),
        Format::Bf16 => Some(DType::Bf16),
        Format::F16 => Some(DType::F16),
    };
    Ok(LoadOptions {
        model,
        draft,
        backend,
        device,
        dtype,
        threads: args.threads,
        draft_window: args.draft_window,
        draft_quant,
        kernels,
    })
}

#[cfg(feature = "demo")]
fn default_model() -> Result<ModelSource> {
    Ok(ModelSource::Embedded(&dflash::demo::TARGET))
}

#[cfg(not(feature = "demo"))]
fn default_model() -> Result<ModelSource> {
    let hint = "give the model's folder with `--model REF`, or build with the feature `demo`";
    Err(Error::request(
        "model",
        "none was given, and this build has no demonstration model",
    )
    .with_hint(hint))
}

#[cfg(feature = "demo")]
fn demo_note(model: &ModelSource) -> Option<String> {
    let demo =
        matches!(model, ModelSource::Embedded(model) if model.name == dflash::demo::TARGET.name);
    demo.then(|| format!("{}; `--model REF` runs another", dflash::demo::NOTE))
}

#[cfg(not(feature = "demo"))]
fn demo_note(_model: &ModelSource) -> Option<String> {
    None
}

#[cfg(feature = "demo")]
fn default_draft(model: &ModelSource) -> Option<ModelSource> {
    let demo =
        matches!(model, ModelSource::Embedded(model) if model.name == dflash::demo::TARGET.name);
    demo.then_some(ModelSource::Embedded(&dflash::demo::D2))
}

#[cfg(not(feature = "demo"))]
fn default_draft(_model: &ModelSource) -> Option<ModelSource> {
    None
}

/// The request without its prompt; what does not depend on the model is checked here.
pub(crate) fn request(args: &RunArgs) -> Result<Request> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
    };
    sampling.check()?;
    let counts = [
        ("max-tokens", Some(args.max_tokens)),
        ("prefill-chunk", Some(args.prefill_chunk)),
        ("block-size", args.block_size),
        ("context", args.context),
    ];
    for (option, value) in counts {
        if value == Some(0) {
            return Err(Error::request(
                option,
                "0 is out of range, expected at least 1",
            ));
        }
    }
    if args.adaptive == Switch::On {
        let reason = "`on` is not part of this version, expected `off`";
        return Err(Error::request("adaptive", reason)
            .with_hint("`--block-size N` sets a smaller block by hand"));
    }
    if args.stop.iter().any(String::is_empty) {
        return Err(Error::request("stop", "an empty text would stop at once"));
    }
    Ok(Request {
        max_tokens: args.max_tokens,
        sampling,
        stop: args.stop.clone(),
        block_size: args.block_size,
        prefill_chunk: args.prefill_chunk,
        context: args.context,
        ..Request::default()
    })
}

fn prompt(args: GenerateArgs) -> Result<Prompt> {
    if let Some(ids) = &args.prompt_ids {
        return token_ids(ids).map(Prompt::Ids);
    }
    let reasoning = args.reasoning.as_deref().map(str::parse).transpose()?;
    let template = args.chat_template.as_deref().map(template).transpose()?;
    let text = match args.prompt.as_deref() {
        Some("-") => standard_input()?,
        Some(text) => text.to_owned(),
        None => {
            let hint =
                "give it as an argument, as `-` for standard input, or as ids with `--prompt-ids`";
            return Err(Error::request("prompt", "there is none").with_hint(hint));
        }
    };
    if text.is_empty() {
        return Err(Error::request(
            "prompt",
            "it is empty, expected at least one character",
        ));
    }
    if args.raw {
        return Ok(Prompt::Raw(text));
    }
    Ok(Prompt::Chat {
        text,
        system: args.system,
        reasoning,
        template,
    })
}

pub(crate) fn token_ids(list: &str) -> Result<Vec<u32>> {
    if list.trim().is_empty() {
        return Err(Error::request(
            "prompt-ids",
            "the list is empty, expected at least one id",
        ));
    }
    let id = |text: &str| {
        let reason = || {
            format!(
                "`{}` is not a token id, expected whole numbers separated by commas",
                text.trim()
            )
        };
        text.trim()
            .parse()
            .map_err(|_| Error::request("prompt-ids", reason()))
    };
    list.split(',').map(id).collect()
}

fn template(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::request(
            "chat-template",
            format!("cannot read `{}`: {error}", path.display()),
        )
    })
}

/// All of standard input, without the newline that `echo` and editors put at its end.
fn standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| Error::request("prompt", format!("cannot read standard input: {error}")))?;
    let mut text = String::from_utf8(bytes)
        .map_err(|_| Error::request("prompt", "standard input is not UTF-8 text"))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::token_ids;

    #[test]
    fn ids_are_whole_numbers() {
        assert_eq!(token_ids("1, 2,3").ok(), Some(vec![1, 2, 3]));
        for bad in ["", " ", "1,,2", "1,", "-1", "1.5", "x", "4294967296"] {
            assert!(token_ids(bad).is_err_and(|e| e.is_usage()), "{bad:?}");
        }
    }
}
