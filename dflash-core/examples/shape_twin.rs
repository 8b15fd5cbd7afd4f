//! Writes the shape twin of a published pair; `cargo xtask fixtures shape-twin` starts it.
//!
//! Arguments: the name, the folder, layers (`all` for the published number), `none`, `4bit`, `8bit`, `mxfp4`, `mxfp8` or `nvfp4`, `full` or `tiny`, a seed.

use std::path::Path;
use std::process::ExitCode;

use dflash_core::checkpoint::SmallFloat;
use dflash_core::testing::twin::{Packing, TwinOptions, write};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder, layers, packing, scale, seed] = args.as_slice() else {
        eprintln!("expected NAME FOLDER LAYERS none|4bit|8bit|mxfp4|mxfp8|nvfp4 full|tiny SEED");
        return ExitCode::from(2);
    };
    let options = options(layers, packing, scale, seed);
    let Some(options) = options else {
        eprintln!("not understood: {layers} {packing} {scale} {seed}");
        return ExitCode::from(2);
    };
    match write(name, &options, Path::new(folder)) {
        Ok(bytes) => {
            println!(
                "{folder}/target and {folder}/draft: {:.3} GB",
                bytes as f64 / 1e9
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(layers: &str, packing: &str, scale: &str, seed: &str) -> Option<TwinOptions> {
    Some(TwinOptions {
        layers: match layers {
            "all" => None,
            number => Some(number.parse().ok()?),
        },
        packing: match packing {
            "none" => Packing::None,
            "4bit" => Packing::Affine { bits: 4 },
            "8bit" => Packing::Affine { bits: 8 },
            name => {
                let mut formats = SmallFloat::ALL.into_iter();
                Packing::SmallFloat(formats.find(|f| f.name() == name)?)
            }
        },
        tiny: match scale {
            "full" => false,
            "tiny" => true,
            _ => return None,
        },
        seed: seed.parse().ok()?,
    })
}
