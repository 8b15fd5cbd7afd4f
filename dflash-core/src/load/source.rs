//! Where a model's files come from.

use std::fmt;
use std::path::{Path, PathBuf};

/// A model in a folder, or in the binary.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A folder with config.json and safetensors files.
    Folder(PathBuf),
    /// Files embedded in the program.
    Embedded(&'static EmbeddedModel),
}

/// The files of a model, embedded in the program.
pub struct EmbeddedModel {
    /// What reports call it.
    pub name: &'static str,
    /// config.json.
    pub config: &'static [u8],
    /// model.safetensors; aligned to 8 bytes.
    pub weights: &'static [u8],
    /// generation_config.json.
    pub generation_config: Option<&'static [u8]>,
    /// tokenizer.json.
    pub tokenizer: Option<&'static [u8]>,
    /// tokenizer_config.json.
    pub tokenizer_config: Option<&'static [u8]>,
}

impl fmt::Debug for EmbeddedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedModel")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ModelSource {
    /// The folder, or the name of the embedded model in place of one: the path that messages show.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(path) => path,
            Self::Embedded(model) => Path::new(model.name),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())
    }
}
