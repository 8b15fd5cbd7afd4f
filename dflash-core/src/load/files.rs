//! A model's files, read but not yet handed to a backend.

use std::path::PathBuf;

use super::source::ModelSource;
use crate::checkpoint::Checkpoint;
use crate::config::{DraftConfig, GenerationConfig, TargetConfig};
use crate::{Error, Result};

/// Configs and checkpoint of one model; tensors stay in the mapped files.
#[derive(Debug)]
pub struct ModelFiles {
    source: ModelSource,
    /// The tensors.
    pub checkpoint: Checkpoint,
    /// The model's own generation defaults.
    pub generation: GenerationConfig,
}

impl ModelFiles {
    /// Opens the checkpoint and reads generation_config.json.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such folder, or whatever the readers find.
    pub fn open(source: &ModelSource) -> Result<Self> {
        let (checkpoint, generation) = match source {
            ModelSource::Folder(folder) => {
                if !folder.is_dir() {
                    let reason = if folder.exists() {
                        "it is not a folder"
                    } else {
                        "there is no such folder"
                    };
                    return Err(Error::NotFound {
                        path: folder.clone(),
                        reason: reason.into(),
                    });
                }
                (Checkpoint::open(folder)?, GenerationConfig::read(folder)?)
            }
            ModelSource::Embedded(model) => {
                let generation = model.generation_config.map(|json| {
                    GenerationConfig::parse(&file(model.name, "generation_config.json"), json)
                });
                (
                    Checkpoint::from_static(model.name, model.weights)?,
                    generation.transpose()?,
                )
            }
        };
        Ok(Self {
            source: source.clone(),
            checkpoint,
            generation: generation.unwrap_or_default(),
        })
    }

    /// Reads config.json as a target's, with the end tokens of generation_config.json.
    ///
    /// # Errors
    /// Whatever the reader finds; a draft is refused by name.
    pub fn target_config(&self) -> Result<TargetConfig> {
        let mut config = match &self.source {
            ModelSource::Folder(folder) => TargetConfig::read(folder)?,
            ModelSource::Embedded(model) => {
                TargetConfig::parse(&file(model.name, "config.json"), model.config)?
            }
        };
        config.apply_generation(&self.generation);
        Ok(config)
    }

    /// Reads config.json as a draft's.
    ///
    /// # Errors
    /// Whatever the reader finds; a target is refused by name.
    pub fn draft_config(&self) -> Result<DraftConfig> {
        let second = self.checkpoint.has_dflash2_tensors();
        match &self.source {
            ModelSource::Folder(folder) => DraftConfig::read(folder, second),
            ModelSource::Embedded(model) => {
                DraftConfig::parse(&file(model.name, "config.json"), model.config, second)
            }
        }
    }

    /// Reads the tokenizer and chat template, if the model ships them.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] or [`Error::Template`].
    #[cfg(feature = "text")]
    pub fn tokenizer(&self) -> Result<Option<crate::text::Tokenizer>> {
        match &self.source {
            ModelSource::Folder(folder) => crate::text::Tokenizer::load(folder),
            ModelSource::Embedded(model) => model
                .tokenizer
                .map(|json| crate::text::Tokenizer::from_bytes(json, model.tokenizer_config, None))
                .transpose(),
        }
    }
}

fn file(model: &str, name: &str) -> PathBuf {
    PathBuf::from(model).join(name)
}
