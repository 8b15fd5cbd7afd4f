//! Recorded results: a safetensors file of named arrays.

use std::path::Path;

use crate::checkpoint::{Bytes, Checkpoint, StoredTensor};
use crate::{Error, Result};

/// The arrays of one recorded file.
#[derive(Debug)]
pub struct Record {
    file: Checkpoint,
}

impl Record {
    /// Reads a recorded file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io {
            path: path.into(),
            source,
        })?;
        Ok(Self {
            file: Checkpoint::from_bytes(&path.display().to_string(), Bytes::copied(&bytes))?,
        })
    }

    fn array(&self, name: &str) -> Result<&StoredTensor> {
        let missing = || Error::MissingTensor {
            path: self.file.path().into(),
            name: name.into(),
            tried: vec![name.into()],
        };
        self.file.tensor(name).ok_or_else(missing)
    }

    /// Whether there is such an array.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Float numbers, row-major.
    ///
    /// # Errors
    /// If there is no such array.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        self.array(name)?.to_f32()
    }

    /// 32-bit integers as ids.
    ///
    /// # Errors
    /// If there is no such array.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>> {
        let bytes = &self.array(name)?.bytes;
        Ok(bytes
            .chunks_exact(4)
            .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
            .collect())
    }
}
