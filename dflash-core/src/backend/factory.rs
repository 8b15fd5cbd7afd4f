//! How a backend is found, asked and loaded at run time.

use super::{Implementation, Op};
use crate::Result;
use crate::load::{LoadRequest, Loaded};
use crate::models::ModelInfo;

/// A backend that can be picked when a model is loaded. Object-safe: a third party adds one without touching this workspace.
pub trait BackendFactory: std::fmt::Debug {
    /// The name that `--backend` takes.
    fn name(&self) -> &'static str;

    /// The devices that it can run on here, the preferred one first; empty when it is built in but not usable.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Why it has no device here, if it has none.
    fn unusable(&self) -> Option<String> {
        None
    }

    /// Whether it runs this model, and how.
    fn supports(&self, model: &ModelInfo) -> Support;

    /// How it serves each operation on its preferred device, as far as that is known before anything is loaded.
    fn operations(&self) -> Vec<(Op, Implementation)> {
        Vec::new()
    }

    /// Loads target and draft on the thread that will run them.
    ///
    /// # Errors
    /// Anything that reading, pairing or allocating can find; the process stays usable.
    fn load(&self, request: &LoadRequest) -> Result<Loaded>;
}

/// A device of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `cpu` or `gpu`, as `--device` takes it.
    pub class: DeviceClass,
    /// Its name (`cpu`, `metal`, `cuda`).
    pub name: String,
}

/// The choice of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceClass {
    /// The processor.
    #[default]
    Cpu,
    /// The graphics processor.
    Gpu,
}

/// Whether a backend runs a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// As the files are.
    Native,
    /// After a conversion in memory, described here.
    Converted(String),
    /// Not at all, for this reason.
    Refused(String),
}
