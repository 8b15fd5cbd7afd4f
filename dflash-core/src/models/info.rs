//! What a backend is asked about before anything is loaded.

use crate::config::TargetConfig;

/// A target's config and the formats of its files.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// The config.
    pub config: TargetConfig,
    /// Number formats of its tensors, by name as in the files (`BF16`), each with its count.
    pub formats: Vec<(String, usize)>,
    /// Tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: usize,
}
