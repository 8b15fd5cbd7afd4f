//! Loading with a backend that is picked at run time.

use std::collections::BTreeMap;

use dflash_core::backend::factory::{BackendFactory, DeviceClass, Support};
use dflash_core::config::{DraftQuant, QuantConfig, TargetConfig};
use dflash_core::load::{LoadRequest, Loaded, ModelFiles, ModelSource};
use dflash_core::metal::Switches;
use dflash_core::models::ModelInfo;
use dflash_core::{DType, Error, Result};

use crate::pick::{factories, passed_over, pick};

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
    /// How the draft's projections are kept in memory.
    pub draft_quant: DraftQuant,
    /// Keep at most the newest `draft_window - 1` context rows in the draft; `None` takes the draft's own windows.
    pub draft_window: Option<usize>,
    /// This project's kernels for Apple's GPUs that may be used there.
    pub kernels: Switches,
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
            draft_quant: DraftQuant::AsStored,
            draft_window: None,
            kernels: Switches::default(),
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
    if let Some(draft) = &options.draft {
        check_quantized_draft(factories, factory, options, draft, &info)?;
    }
    let mut notes = match options.backend {
        BackendChoice::Auto => passed_over(factories, factory),
        BackendChoice::Named(_) => Vec::new(),
    };
    let first = factory.devices().first().map(|d| d.class);
    let on_gpu = options.device.or(first) == Some(DeviceClass::Gpu);
    if options.kernels != Switches::default() && !(on_gpu && factory.name() == "mlx") {
        notes.push(
            "`--kernels-off` has no effect: the mlx backend uses those kernels on an Apple GPU"
                .into(),
        );
    }
    factory.load(&LoadRequest {
        target: options.model.clone(),
        draft: options.draft.clone(),
        device: options.device,
        dtype: options.dtype,
        draft_window: options.draft_window,
        draft_quant: options.draft_quant,
        threads: options.threads,
        kernels: options.kernels,
        backend_reason: reason,
        notes,
    })
}

/// Refuses a backend that does not compute the draft's quantized weights, be they so in the file or quantized at load.
fn check_quantized_draft(
    factories: &[Box<dyn BackendFactory>],
    picked: &dyn BackendFactory,
    options: &LoadOptions,
    draft: &ModelSource,
    target: &ModelInfo,
) -> Result<()> {
    let quantization = match options.draft_quant {
        DraftQuant::Packed(spec) => Some(QuantConfig::uniform(spec.weights())),
        DraftQuant::AsStored | DraftQuant::Auto => {
            ModelFiles::open(draft)?.draft_config()?.quantization
        }
    };
    let Some(quantization) = quantization else {
        return Ok(());
    };
    let spec = quantization.global;
    let mut info = target.clone();
    info.config.quantization = Some(quantization);
    let Support::Refused(why) = picked.supports(&info) else {
        return Ok(());
    };
    let others: Vec<_> = factories
        .iter()
        .filter(|f| !matches!(f.supports(&info), Support::Refused(_)))
        .map(|f| f.name())
        .collect();
    let available = if others.is_empty() {
        "none".into()
    } else {
        others.join(", ")
    };
    Err(Error::Unavailable {
        what: format!(
            "a draft of {} bits in groups of {}",
            spec.bits, spec.group
        ),
        reason: format!(
            "the backend `{}` does not run it ({why}); backends that do: {available}",
            picked.name()
        ),
        hint: Some("name such a backend with `--backend`, or keep the draft's floats with `--draft-quant none`".into()),
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
