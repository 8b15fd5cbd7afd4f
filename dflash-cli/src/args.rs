//! The command line as it is written; `settings` checks what it means.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Faster local text generation with the same text: DFlash speculative decoding.
#[derive(Debug, Parser)]
#[command(
    name = "dflash",
    version,
    arg_required_else_help = true,
    max_term_width = 110
)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate text from a prompt
    Generate(Box<GenerateArgs>),
    /// Show what a model is made of, what it needs and what runs it
    Inspect(InspectArgs),
    /// Run the same prompts on several backends and compare them layer by layer
    Compare(Box<CompareArgs>),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done (also after Ctrl-C, with the text so far), 1 files or work are wrong, \
                        2 the command line or the machine is wrong."
)]
pub(crate) struct GenerateArgs {
    /// The prompt; `-` reads it from standard input, without the newline at its end
    pub(crate) prompt: Option<String>,
    /// Token ids in place of a text, separated by commas; needs no tokenizer
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "system", "reasoning", "raw", "chat_template"])]
    pub(crate) prompt_ids: Option<String>,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Whether, or how much, the model thinks before it answers
    #[arg(long, value_name = "on|off|LEVEL", conflicts_with = "raw")]
    pub(crate) reasoning: Option<String>,
    /// Take the prompt as it is, without a chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// A chat template in place of the model's
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Print one JSON object in place of the text
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("max_tokens", |arg| arg.default_value("64")),
    mut_arg("backend", |arg| arg.hide(true)),
    mut_arg("trace", |arg| arg.hide(true)),
    after_help = "Exit codes: 0 all tokens are equal but for what the stated exactness allows, 1 they are not, \
                  2 the command line or the machine is wrong."
)]
pub(crate) struct CompareArgs {
    /// Prompts; without any, a few of the program's own
    #[arg(value_name = "PROMPT")]
    pub(crate) prompts: Vec<String>,
    /// Token ids in place of a text, separated by commas (repeatable)
    #[arg(long, value_name = "IDS", conflicts_with = "prompts")]
    pub(crate) prompt_ids: Vec<String>,
    /// Take the prompts as they are, without a chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// The backends, separated by commas [default: all that run the model]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) backends: Vec<String>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// The model's folder; without it the embedded demonstration model
    #[arg(long, value_name = "REF")]
    pub(crate) model: Option<String>,
    /// The draft's folder, `demo:d1`, `demo:d2`, or `none` for plain decoding
    #[arg(long, value_name = "REF")]
    pub(crate) draft: Option<String>,
    /// Fail rather than decode plainly
    #[arg(long)]
    pub(crate) require_draft: bool,
    /// Which backend runs the model: `auto`, or one of those that `dflash inspect` lists
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) backend: String,
    /// Which device runs it
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Number format of the target's activations
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub(crate) dtype: Format,
    /// Quantize the draft's projections when they are loaded: w2, w4 or w8; then a16 or a32 for the width of its activations
    /// if the chip's own choice is not wanted; then :gs32, :gs64 or :gs128 (`w4`, `w8a32:gs32`). `none` keeps them as stored,
    /// `auto` as well where nothing is measured
    #[arg(long, value_name = "SPEC", default_value = "none")]
    pub(crate) draft_quant: String,
    /// Keep at most the newest N-1 context rows in the draft, on every layer [default: the draft's]
    #[arg(long, value_name = "N")]
    pub(crate) draft_window: Option<usize>,
    /// Threads on the processor [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Do without some of the program's own kernels for Apple's GPUs, which the mlx backend uses there:
    /// gated-delta, affine-rows, attention; what they replace takes over
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) kernels_off: Vec<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct RunArgs {
    /// Longest answer, in tokens
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub(crate) max_tokens: usize,
    /// Divides the logits; 0 always takes the best token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) temperature: f32,
    /// Keep the smallest set of tokens with this probability
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(crate) top_p: f32,
    /// Keep this many tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Keep tokens with at least this part of the best one's probability
    #[arg(
        long,
        value_name = "M",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) min_p: f32,
    /// Makes tokens that occurred less likely, above 1
    #[arg(
        long,
        value_name = "R",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(crate) repetition_penalty: f32,
    /// Key of the noise: the same seed gives the same text, with and without a draft
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// End before this text (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Go on after end-of-text tokens, up to `--max-tokens`
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Rows per block, from 1 to the draft's trained size [default: the draft's]
    #[arg(long, value_name = "N")]
    pub(crate) block_size: Option<usize>,
    /// Whether block sizes follow the measured acceptance; `off`: always the full block
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Switch::Off)]
    pub(crate) adaptive: Switch,
    /// Longest sequence, prompt included [default: the model's]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Prompt tokens per step; changes no result
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) prefill_chunk: usize,
    /// Write a JSON line per round to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Say more: what was loaded and how; twice: a line per round
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A folder of a target or a draft, or `demo`, `demo:d1`, `demo:d2`
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    Auto,
    Cpu,
    Gpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Auto,
    F32,
    Bf16,
    F16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    #[value(hide = true)]
    On,
    Off,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_parser_is_consistent() {
        super::CommandLine::command().debug_assert();
    }
}
