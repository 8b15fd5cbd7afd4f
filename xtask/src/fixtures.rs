//! Test data that is made, not recorded.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

use crate::shell::Line;

/// What to make.
#[derive(Debug, Subcommand)]
pub(crate) enum Fixture {
    /// A pair with random weights and the shapes of a published one: qwen3-8b, llama-3.1-8b, qwen3.5-9b, qwen3.8-27b, qwen3.5-35b-a3b
    ShapeTwin(ShapeTwin),
}

#[derive(Debug, Args)]
pub(crate) struct ShapeTwin {
    /// The published target
    name: String,
    /// Layers of the target [default: the published number]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// The folder that gets `target` and `draft` [default: `target/twins/NAME`]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How the target is stored: bf16, or packed as MLX does
    #[arg(long, value_enum, default_value_t = Quant::None)]
    quant: Quant,
    /// `tiny`: the published head sizes, but narrow and with a small vocabulary
    #[arg(long, value_enum, default_value_t = Scale::Full)]
    scale: Scale,
    /// Seeds the weights
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Quant {
    None,
    #[value(name = "4bit")]
    Four,
    #[value(name = "8bit")]
    Eight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    Full,
    Tiny,
}

/// Makes it.
///
/// # Errors
/// When the folder cannot be written or the name is not known.
pub(crate) fn run(fixture: &Fixture) -> Result<()> {
    let Fixture::ShapeTwin(twin) = fixture;
    line(twin).run()
}

fn line(twin: &ShapeTwin) -> Line {
    let name = twin.name.to_ascii_lowercase();
    let out = twin
        .out
        .clone()
        .unwrap_or_else(|| PathBuf::from("target/twins").join(&name));
    let layers = twin
        .layers
        .map_or_else(|| "all".to_owned(), |n| n.to_string());
    let word = |value: Option<clap::builder::PossibleValue>| {
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    };
    Line::new("cargo run --quiet --locked --profile ci -p dflash-core --features testing --example shape_twin --")
        .arg(&name)
        .arg(&out.display().to_string())
        .arg(&layers)
        .arg(&word(twin.quant.to_possible_value()))
        .arg(&word(twin.scale.to_possible_value()))
        .arg(&twin.seed.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_become_the_arguments_of_the_example() {
        let twin = ShapeTwin {
            name: "Qwen3.5-9B".into(),
            layers: Some(4),
            out: None,
            quant: Quant::Four,
            scale: Scale::Tiny,
            seed: 3,
        };
        let line = line(&twin).to_string();
        assert!(
            line.ends_with("-- qwen3.5-9b target/twins/qwen3.5-9b 4 4bit tiny 3"),
            "{line}"
        );
    }
}
