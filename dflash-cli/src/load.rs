//! Loading with a backend that is picked at run time.

use std::collections::BTreeMap;

use dflash_core::backend::factory::{BackendFactory, DeviceClass};
use dflash_core::config::TargetConfig;
use dflash_core::load::{LoadRequest, Loaded, ModelFiles, ModelSource};
use dflash_core::models::ModelInfo;
use dflash_core::{DType, Result};

use crate::pick::{factories, pick};

/// Which backend runs a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The first that runs the model as its files are, else the first that runs it at all.
    #[default]
    Auto,
    /// The one of this name.
    Named(String),
}

/// What to load, and how.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The target.
    pub model: ModelSource,
    /// The draft; `None` decodes plainly.
    pub draft: Option<ModelSource>,
    /// The backend.
    pub backend: BackendChoice,
    /// The device; `None` takes the backend's first.
    pub device: Option<DeviceClass>,
    /// Format of the target's activations; `None` takes the backend's choice.
    pub dtype: Option<DType>,
    /// Threads on the processor; `None` takes one per core.
    pub threads: Option<usize>,
    /// Keep at most the newest `draft_window - 1` context rows in the draft; `None` takes the draft's own windows.
    pub draft_window: Option<usize>,
}

impl LoadOptions {
    /// A target alone, with every choice left to the program.
    pub fn new(model: ModelSource) -> Self {
        Self {
            model,
            draft: None,
            backend: BackendChoice::Auto,
            device: None,
            dtype: None,
            threads: None,
            draft_window: None,
        }
    }
}

/// Picks a backend among the built-in ones and loads target and draft with it, on this thread.
///
/// The load report says which backend and why.
///
/// # Errors
/// No backend can be used or runs this model; or whatever reading, pairing and allocating find.
pub fn load(options: &LoadOptions) -> Result<Loaded> {
    load_among(&factories(), options)
}

/// [`load`] with a list of backends that the caller made, the preferred one first.
///
/// # Errors
/// As [`load`].
pub fn load_among(factories: &[Box<dyn BackendFactory>], options: &LoadOptions) -> Result<Loaded> {
    let files = ModelFiles::open(&options.model)?;
    let info = model_info(&files, files.target_config()?);
    let (factory, reason) = pick(factories, &options.backend, options.device, &info)?;
    factory.load(&LoadRequest {
        target: options.model.clone(),
        draft: options.draft.clone(),
        device: options.device,
        dtype: options.dtype,
        draft_window: options.draft_window,
        threads: options.threads,
        backend_reason: reason,
        notes: Vec::new(),
    })
}

/// What backends are asked about: a target's config, and the formats of its tensors.
pub fn model_info(files: &ModelFiles, config: TargetConfig) -> ModelInfo {
    let mut formats: BTreeMap<String, usize> = BTreeMap::new();
    for tensor in files.checkpoint.tensors() {
        *formats.entry(tensor.dtype.to_string()).or_default() += 1;
    }
    ModelInfo {
        config,
        formats: formats.into_iter().collect(),
        tensors: files.checkpoint.len(),
        bytes: files.checkpoint.total_bytes(),
    }
}
