//! Models, drafts and the round loop of DFlash speculative decoding, independent of any tensor library.
//!
//! A small block-diffusion *draft* proposes a block of tokens in one pass, the large *target* checks
//! them in one pass, and the text is what the target alone would have written, only sooner
//! (DFlash, arXiv 2602.06036; DFlash 2 adds a convolution and a candidate selector to the draft).
//!
//! # Map
//!
//! | module | holds | knows |
//! |---|---|---|
//! | [`config`], [`checkpoint`] | strict readers of config files and safetensors | nothing above them |
//! | [`text`] | tokenizer, chat template, detokenizer (feature `text`), stop strings | nothing above it |
//! | [`backend`] | [`Backend`](backend::Backend), the seam to a tensor library; composite defaults; the naive [`reference`](backend::reference) | checkpoint formats, drawing rules |
//! | [`cache`] | keys and values, recurrent states, and how they are put back | backend |
//! | [`nn`] | layers | backend, cache, config |
//! | [`models`], [`draft`] | targets and drafts, each written once for all backends | layers |
//! | [`spec`] | the round loop, acceptance, sampling, the engine | models by what they do, no tensors |
//! | [`load`] | from files to an engine | everything |
//! | [`metal`] | kernels for Apple's GPUs as text, shared by backends | backend |
//! | `testing` | recorded results, conformance, fakes (feature `testing`) | everything |
//!
//! There are two seams. [`Backend`](backend::Backend) is what a tensor library has to offer;
//! [`TargetModel`], [`DraftModel`], [`Cache`] and [`Rollback`] are what the loop needs of a model.
//! Models stand between the two and are written once, in this crate: the errors of this field sit in
//! what copies per backend would duplicate (see [`backend`] for the rejected alternative).
//!
//! # Invariants
//!
//! 1. This crate names no tensor library. Models never match on a backend and never evaluate. `spec`
//!    never sees a tensor layout. Nothing here prints. `unsafe` stands in the file mapping only.
//! 2. One loop, one rollback, one owner of the sequence position.
//! 3. After every round the committed state equals plain decoding's: lengths, positions, rows and ids
//!    always, every cell bit for bit at the exact level. What cannot be rolled back exactly is refused.
//! 4. Loading is strict: every tensor is claimed once, every key that changes the mathematics is read
//!    from one table or refused.
//! 5. Nothing is silent: a fallback, a clamp or a choice made for a reason is a note in the report.
//! 6. No number that is not finite becomes a token. A bad draft costs speed, never text. A target that
//!    is not finite ends the request with an error; the engine stays usable.
//! 7. Same input, seed, backend and device: same tokens on every run.
//!
//! # Example
//!
//! ```no_run
//! use dflash_core::backend::reference::factory;
//! use dflash_core::load::{LoadRequest, ModelSource};
//! use dflash_core::{Output, Request, stream_generate};
//!
//! # fn main() -> dflash_core::Result<()> {
//! let mut request = LoadRequest::new(ModelSource::Folder("target".into()));
//! request.draft = Some(ModelSource::Folder("draft".into()));
//! let mut loaded = factory().load(&request)?;
//! let end_ids = loaded.engine.report().end_ids.clone();
//! let prompt = Request { prompt: vec![1, 2, 3], end_ids, ..Request::default() };
//! for output in stream_generate(loaded.engine.as_mut(), prompt)? {
//!     if let Output::Done(report) = output? {
//!         assert_eq!(report.tokens.len(), 1 + report.acceptance_lengths.iter().sum::<usize>());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod backend;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod draft;
pub mod dtype;
pub mod error;
pub mod load;
pub mod metal;
pub mod models;
pub mod nn;
pub mod spec;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;

#[doc(inline)]
pub use dtype::DType;
#[doc(inline)]
pub use error::{Error, PairingCheck, Result};

// What the loop needs of a model, and the acceptance rule: the second seam.
#[doc(inline)]
pub use cache::{Cache, Rollback};
#[doc(inline)]
pub use spec::{Acceptance, DraftModel, Pending, Rows, TargetModel, accept};

// What a caller of an engine needs.
#[doc(inline)]
pub use spec::{Engine, Event, FinishReason, Output, Report, Request, Sampling, stream_generate};
