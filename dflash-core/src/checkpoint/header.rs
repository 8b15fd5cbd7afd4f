//! The header of one safetensors file.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};

use super::bytes::Bytes;
use super::tensor::{StoredTensor, StoredType};
use crate::{Error, Result};

/// Every tensor of a file.
///
/// The library checks that the header lies in the file, that shape and format give each tensor's
/// bytes without overflow, and that the tensors fill the file without gap or overlap. A name that
/// stands twice it would let through.
pub(super) fn read(path: &Path, file: &Bytes) -> Result<Vec<StoredTensor>> {
    let (header, metadata) = SafeTensors::read_metadata(file).map_err(|e| {
        let incomplete = "expected a complete safetensors file";
        Error::checkpoint(path, format!("{e} ({incomplete})"))
            .with_hint("the download may be incomplete; fetch the file again")
    })?;
    let start = 8 + header;
    serde_json::from_slice::<DistinctKeys>(&file[8..start])
        .map_err(|e| Error::checkpoint(path, e.to_string()))?;
    let tensors = metadata.tensors().into_iter().map(|(name, info)| {
        let (from, to) = info.data_offsets;
        StoredTensor {
            name,
            dtype: StoredType::of(info.dtype),
            shape: info.shape.clone(),
            bytes: file.slice(start + from..start + to),
        }
    });
    Ok(tensors.collect())
}

/// Accepts an object whose keys are distinct.
struct DistinctKeys;

impl<'de> Deserialize<'de> for DistinctKeys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = DistinctKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctKeys, A::Error> {
                let mut seen = HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    map.next_value::<IgnoredAny>()?;
                    if seen.contains(&key) {
                        return Err(A::Error::custom(format!(
                            "tensor `{key}` stands twice in the header"
                        )));
                    }
                    seen.insert(key);
                }
                Ok(DistinctKeys)
            }
        }
        deserializer.deserialize_map(Keys)
    }
}
