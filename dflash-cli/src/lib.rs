//! Runs DFlash speculative decoding with a backend that is picked when a model is loaded.
//!
//! This is the library behind the `dflash` command. It knows the built-in backends
//! ([`factories`]), picks one for a model ([`load`]) and puts an engine on a thread of its own
//! ([`EngineHandle`]), so that any thread can ask for text. What runs there comes from
//! `dflash-core`; the types that a caller needs are re-exported here.
//!
//! ```no_run
//! use dflash::{LoadOptions, ModelSource, Output, Request, stream_generate};
//!
//! # fn main() -> dflash::Result<()> {
//! let mut options = LoadOptions::new(ModelSource::Folder("models/target".into()));
//! options.draft = Some(ModelSource::Folder("models/draft".into()));
//! let mut loaded = dflash::load(&options)?;
//! let end_ids = loaded.engine.report().end_ids.clone();
//! let request = Request { prompt: vec![1, 2, 3], end_ids, ..Request::default() };
//! for output in stream_generate(loaded.engine.as_mut(), request)? {
//!     if let Output::Done(report) = output? {
//!         println!("{} ({:?} tokens per round)", report.text, report.tokens_per_round());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! `candle` (default): the candle backend, on macOS with its GPU; `candle-cuda`, `accelerate` and `mkl` pass on to it.
//! `mlx` (default): the MLX backend on macOS, nothing elsewhere; `mlx-host`: its processor build elsewhere, for development.
//! `demo` (default): a tiny model and two drafts inside the program. `cli` (default): the command itself;
//! users of the library leave it out with `default-features = false`.

pub mod compare;
#[cfg(feature = "demo")]
pub mod demo;
mod handle;
mod load;
mod pick;
mod reference;

pub use dflash_core::backend::factory::{BackendFactory, DeviceClass, DeviceInfo, Support};
pub use dflash_core::config::{ActivationWidth, DraftQuant, DraftSpec, GenerationConfig};
pub use dflash_core::load::{
    DraftSummary, EmbeddedModel, LoadReport, LoadRequest, Loaded, ModelSource,
};
pub use dflash_core::metal::{Family as KernelFamily, Switches as KernelSwitches};
pub use dflash_core::spec::{
    Engine, Event, FinishReason, Generation, Output, Report, Request, RequestId, Round, RoundTimes,
    Sampling, Step, stream_generate,
};
pub use dflash_core::{DType, Error, PairingCheck, Result, text};

pub use handle::{EngineHandle, EngineInfo, Stream};
pub use load::{BackendChoice, LoadOptions, load, load_among, model_info};
pub use pick::{BUILD_FEATURES, factories, pick};
pub use reference::resolve;
