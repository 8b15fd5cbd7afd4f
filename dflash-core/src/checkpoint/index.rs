//! Which files of a folder make up a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// The name of the index file.
const INDEX: &str = "model.safetensors.index.json";

/// The largest index that is read.
const MAX_INDEX: u64 = 64 << 20;

/// The files to read.
#[derive(Debug)]
pub(super) struct Files {
    /// File names, sorted.
    pub(super) shards: Vec<String>,
    /// Tensor to file, if there is an index.
    pub(super) index: Option<BTreeMap<String, String>>,
    pub(super) notes: Vec<String>,
}

/// Finds the files of a model folder: those that the index lists, else `model*.safetensors`.
pub(super) fn find(folder: &Path) -> Result<Files> {
    let io = |source| Error::Io {
        path: folder.into(),
        source,
    };
    if !folder.is_dir() {
        let reason = if folder.exists() {
            "expected a folder, found a file"
        } else {
            "there is no such folder"
        };
        return Err(Error::NotFound {
            path: folder.into(),
            reason: reason.into(),
        });
    }
    let mut present = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        // A name that is not Unicode cannot be one of a checkpoint's.
        present.extend(entry.map_err(io)?.file_name().into_string());
    }
    let path = folder.join(INDEX);
    let index = if present.contains(INDEX) {
        Some(read(&path)?)
    } else {
        None
    };
    let shards: BTreeSet<String> = match &index {
        Some(index) => index.values().cloned().collect(),
        None => present
            .iter()
            .filter(|n| n.starts_with("model") && n.ends_with(".safetensors"))
            .cloned()
            .collect(),
    };
    if let Some(missing) = shards.iter().find(|name| !present.contains(*name)) {
        return Err(Error::checkpoint(
            &path,
            format!("the file `{missing}`, which it lists, is missing"),
        )
        .with_hint("the download may be incomplete; fetch the model again"));
    }
    if shards.is_empty() {
        return Err(nothing_found(folder, &present));
    }
    if index.is_none() {
        check_numbering(folder, &shards)?;
    }
    let ignored: Vec<&str> = present
        .iter()
        .filter(|n| n.ends_with(".safetensors") && !shards.contains(*n))
        .map(String::as_str)
        .collect();
    let notes = if ignored.is_empty() {
        Vec::new()
    } else {
        vec![format!(
            "not part of the checkpoint, ignored: {}",
            ignored.join(", ")
        )]
    };
    Ok(Files {
        shards: shards.into_iter().collect(),
        index,
        notes,
    })
}

fn nothing_found(folder: &Path, present: &BTreeSet<String>) -> Error {
    let error = Error::checkpoint(folder, "no `model*.safetensors` in the folder");
    let other = |suffix: &str| present.iter().find(|n| n.ends_with(suffix));
    if let Some(name) = other(".gguf") {
        return error.with_hint(format!("give the file itself: `{name}`"));
    }
    if let Some(name) = other(".bin").or(other(".pt")).or(other(".pth")) {
        return error.with_hint(format!(
            "`{name}` is a Python pickle, which is never loaded; convert it to safetensors"
        ));
    }
    if let Some(name) = other(".safetensors") {
        return error.with_hint(format!("`{name}` is not a name that checkpoints use"));
    }
    error
}

/// The shards of `model-00001-of-00003.safetensors` must all be there.
fn check_numbering(folder: &Path, shards: &BTreeSet<String>) -> Result<()> {
    for name in shards {
        let Some((stem, count)) = name.trim_end_matches(".safetensors").rsplit_once("-of-") else {
            continue;
        };
        let Some((stem, _)) = stem.rsplit_once('-') else {
            continue;
        };
        let (width, Ok(total)) = (count.len(), count.parse::<usize>()) else {
            continue;
        };
        let found = shards
            .iter()
            .filter(|n| {
                n.starts_with(&format!("{stem}-"))
                    && n.ends_with(&format!("-of-{count}.safetensors"))
            })
            .count();
        if found < total {
            let missing = (1..=shards.len() + 1)
                .map(|i| format!("{stem}-{i:0width$}-of-{count}.safetensors"))
                .find(|n| !shards.contains(n));
            let missing = missing.unwrap_or_default();
            return Err(Error::checkpoint(
                folder,
                format!("{found} of {total} files are there; `{missing}` is missing"),
            )
            .with_hint("the download may be incomplete; fetch the model again"));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<BTreeMap<String, String>> {
    let io = |source| Error::Io {
        path: path.into(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::checkpoint(path, "not a regular file"));
    }
    if metadata.len() > MAX_INDEX {
        return Err(Error::checkpoint(path, "too large for an index"));
    }
    parse(path, &std::fs::read(path).map_err(io)?)
}

/// Reads an index. Its file names must be plain names: it cannot reach outside its folder.
pub(super) fn parse(path: &Path, json: &[u8]) -> Result<BTreeMap<String, String>> {
    let error = |reason: String| Error::checkpoint(path, reason);
    let value: Value =
        serde_json::from_slice(json).map_err(|e| error(format!("not valid JSON: {e}")))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| error("expected an object `weight_map`".into()))?;
    let mut index = BTreeMap::new();
    for (tensor, file) in map {
        let file = file
            .as_str()
            .ok_or_else(|| error(format!("expected a file name for tensor `{tensor}`")))?;
        let plain = file.ends_with(".safetensors")
            && !file.contains(['/', '\\', ':', '\0'])
            && !file.starts_with('.');
        if !plain {
            return Err(error(format!(
                "tensor `{tensor}` is said to be in {file:?}; expected the name of a safetensors file in the same folder"
            )));
        }
        index.insert(tensor.clone(), file.to_owned());
    }
    if index.is_empty() {
        return Err(error("`weight_map` is empty".into()));
    }
    Ok(index)
}
