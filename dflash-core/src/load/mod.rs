//! From files to an engine: what to load, and what was loaded.

mod build;
mod files;
mod plan;
mod report;
mod source;

pub use build::{load_on, load_with};
pub use files::ModelFiles;
pub use plan::{DraftPlan, Role, activations};
pub use report::{CacheSummary, DraftSummary, LoadReport};
pub use source::{EmbeddedModel, ModelSource};

use crate::DType;
use crate::backend::factory::DeviceClass;
use crate::config::DraftQuant;
use crate::metal::Switches;
use crate::spec::Engine;

/// What to load, and how. Shared by all backends.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    /// The target.
    pub target: ModelSource,
    /// The draft, or plain decoding.
    pub draft: Option<ModelSource>,
    /// The device; `None` takes the backend's first.
    pub device: Option<DeviceClass>,
    /// Format of the target's activations; `None` takes the backend's choice for the device.
    pub dtype: Option<DType>,
    /// Keep at most the newest `draft_window - 1` context rows in the draft, on every layer; at least 2.
    pub draft_window: Option<usize>,
    /// How the draft's projections are kept in memory.
    pub draft_quant: DraftQuant,
    /// Threads on the processor; `None` takes one per core.
    pub threads: Option<usize>,
    /// Kernels for Apple's GPUs that may be used there.
    pub kernels: Switches,
    /// Why this backend runs it, for the report.
    pub backend_reason: String,
    /// What was decided before loading, for the report: a device that could not be used, a format chosen for a reason.
    pub notes: Vec<String>,
}

impl LoadRequest {
    /// A target alone, with every choice left to the backend.
    pub fn new(target: ModelSource) -> Self {
        Self {
            target,
            draft: None,
            device: None,
            dtype: None,
            draft_window: None,
            draft_quant: DraftQuant::AsStored,
            threads: None,
            kernels: Switches::default(),
            backend_reason: "asked for".into(),
            notes: Vec::new(),
        }
    }
}

/// A loaded engine and what belongs to it.
#[derive(Debug)]
pub struct Loaded {
    /// Runs requests.
    pub engine: Box<dyn Engine>,
    /// Encodes prompts; `None` if the target came without a tokenizer.
    #[cfg(feature = "text")]
    pub tokenizer: Option<std::sync::Arc<crate::text::Tokenizer>>,
    /// The model's own generation defaults.
    pub generation: crate::config::GenerationConfig,
}
