//! A model folder's tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bytes::Bytes;
use super::claims::Claims;
use super::tensor::{StoredTensor, StoredType};
use super::{header, index, mmap};
use crate::config::{DraftConfig, TargetConfig};
use crate::{Error, Result};

/// Every tensor of a checkpoint, by its name in the files. Clones share the files.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    tensors: Arc<BTreeMap<String, StoredTensor>>,
    notes: Vec<String>,
}

/// What a checkpoint says about one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// The number format.
    pub dtype: StoredType,
    /// Sizes, outermost first.
    pub shape: &'a [usize],
    /// Size in the file.
    pub bytes: usize,
}

impl Checkpoint {
    /// Opens a model folder: the files that `model.safetensors.index.json` lists, else every
    /// `model*.safetensors`.
    ///
    /// The files are mapped, not read, and must not change while the checkpoint or a tensor of it
    /// is in use.
    ///
    /// # Errors
    /// There is no such folder or no checkpoint in it, a file is damaged, a file of the index is
    /// missing, or index and files disagree about a tensor.
    pub fn open(folder: &Path) -> Result<Self> {
        let files = index::find(folder)?;
        let mut tensors: BTreeMap<String, StoredTensor> = BTreeMap::new();
        let mut homes: BTreeMap<String, String> = BTreeMap::new();
        for shard in &files.shards {
            let path = folder.join(shard);
            for tensor in header::read(&path, &mmap::map_file(&path)?)? {
                let name = tensor.name.clone();
                if let Some(other) = homes.insert(name.clone(), shard.clone()) {
                    return Err(Error::checkpoint(
                        folder,
                        format!("tensor `{name}` is in `{other}` and in `{shard}`"),
                    ));
                }
                tensors.insert(name, tensor);
            }
        }
        for (name, file) in files.index.iter().flatten() {
            if homes.get(name) != Some(file) {
                let found = homes
                    .get(name)
                    .map_or("no file has it".into(), |home| format!("it is in `{home}`"));
                return Err(Error::checkpoint(
                    folder,
                    format!("the index says that tensor `{name}` is in `{file}`, but {found}"),
                )
                .with_hint("index and files are of different versions; fetch the model again"));
            }
        }
        Ok(Self {
            path: folder.into(),
            tensors: Arc::new(tensors),
            notes: files.notes,
        })
    }

    /// Reads a checkpoint that is part of the program; `name` is for messages.
    ///
    /// # Errors
    /// The bytes are not one complete safetensors file.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self> {
        Self::from_bytes(name, Bytes::from_static(bytes))
    }

    /// Reads a checkpoint from memory; `name` is for messages.
    ///
    /// # Errors
    /// The bytes are not one complete safetensors file.
    pub fn from_bytes(name: &str, bytes: Bytes) -> Result<Self> {
        let path = PathBuf::from(name);
        let tensors = header::read(&path, &bytes)?
            .into_iter()
            .map(|t| (t.name.clone(), t))
            .collect();
        Ok(Self {
            path,
            tensors: Arc::new(tensors),
            notes: Vec::new(),
        })
    }

    /// The folder, or the name it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.tensors.values().map(|t| TensorInfo {
            name: &t.name,
            dtype: t.dtype,
            shape: &t.shape,
            bytes: t.bytes.len(),
        })
    }

    /// The names in the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of this name in the files, whoever may claim it.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// True if there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> usize {
        self.tensors.values().map(|t| t.bytes.len()).sum()
    }

    /// What was ignored in the folder.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the checkpoint holds the parts that only a DFlash 2 draft has.
    pub fn has_dflash2_tensors(&self) -> bool {
        let part = |p: &str| matches!(p, "candidate_selector" | "attention_conv" | "mlp_conv");
        self.tensors.keys().any(|name| name.split('.').any(part))
    }

    /// Starts to hand out a target's tensors. Parts of the file that text generation does not use
    /// (vision, audio, multi-token prediction) are skipped with a note.
    ///
    /// # Errors
    /// The tensors are in no nest or in several, or convolutions have different layouts.
    pub fn claims_for(&self, config: &TargetConfig) -> Result<Claims> {
        Claims::target(
            self.path.clone(),
            Arc::clone(&self.tensors),
            config.quantization.clone(),
        )
    }

    /// Starts to hand out a draft's tensors: nothing is skipped.
    ///
    /// # Errors
    /// The tensors are in no nest or in several.
    pub fn claims_for_draft(&self, config: &DraftConfig) -> Result<Claims> {
        Claims::draft(
            self.path.clone(),
            Arc::clone(&self.tensors),
            config.quantization.clone(),
        )
    }
}
