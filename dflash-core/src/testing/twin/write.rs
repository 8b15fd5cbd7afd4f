//! Writes tensors piece by piece into shards, with an index.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::layout::{Kind, Stored};
use crate::testing::fakes::scramble;
use crate::testing::plan::Around;
use crate::{Error, Result};

/// Bytes of a shard, as published ones have at most.
const SHARD: usize = 5_000_000_000;

/// Elements that are made at a time.
const PIECE: usize = 1 << 16;

/// Writes config.json, the shards and their index. Returns the bytes of all tensors.
pub(super) fn checkpoint(
    folder: &Path,
    config: &Value,
    tensors: &[Stored],
    seed: u64,
) -> Result<u64> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    let path = folder.join("config.json");
    std::fs::write(&path, format!("{config:#}\n")).map_err(io(&path))?;
    let shards = shards(tensors);
    let (mut total, mut first, mut map) = (0u64, 0, Map::new());
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let path = folder.join(&name);
        total += shard_file(&path, shard, seed, first).map_err(io(&path))?;
        first += shard.len();
        map.extend(shard.iter().map(|t| (t.name.clone(), json!(name))));
    }
    if shards.len() > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        let path = folder.join("model.safetensors.index.json");
        std::fs::write(&path, format!("{index:#}\n")).map_err(io(&path))?;
    }
    Ok(total)
}

/// Tensors in order, as many to a shard as fit.
fn shards(tensors: &[Stored]) -> Vec<&[Stored]> {
    let mut shards = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (at, tensor) in tensors.iter().enumerate() {
        if at > start && size + tensor.bytes() > SHARD {
            shards.push(&tensors[start..at]);
            (start, size) = (at, 0);
        }
        size += tensor.bytes();
    }
    shards.push(&tensors[start..]);
    shards
}

/// One file; `first` is the number of its first tensor in the checkpoint.
fn shard_file(path: &Path, tensors: &[Stored], seed: u64, first: usize) -> std::io::Result<u64> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.bytes();
        let dtype = match tensor.kind {
            Kind::Numbers(_) => "BF16",
            Kind::Codes(_) => "U32",
            Kind::Scales(_) => "U8",
        };
        let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    // Tensors start at a multiple of eight.
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for (number, tensor) in tensors.iter().enumerate() {
        numbers(&mut file, tensor, scramble(seed, (first + number) as u64))?;
    }
    file.flush()?;
    Ok(end as u64)
}

/// A tensor's bytes. One hash makes four numbers, two words of codes or eight scales.
fn numbers(file: &mut impl Write, tensor: &Stored, seed: u64) -> std::io::Result<()> {
    let mut left = tensor.shape.iter().product::<usize>();
    let mut counter = 0u64;
    let mut piece = Vec::with_capacity(PIECE * 4);
    while left > 0 {
        piece.clear();
        let count = left.min(PIECE);
        while piece.len() < count * tensor.width() {
            let hash = scramble(seed, counter);
            counter += 1;
            match tensor.kind {
                Kind::Codes(mask) => piece.extend((hash & mask).to_le_bytes()),
                Kind::Scales(top) => {
                    piece.extend(hash.to_le_bytes().map(|b| top.saturating_sub(b % 4)));
                }
                Kind::Numbers(Around(middle, spread)) => {
                    for part in hash.to_le_bytes().chunks_exact(2) {
                        let part = u16::from_le_bytes([part[0], part[1]]);
                        let unit = f32::from(part) / 32_768.0 - 1.0;
                        let number = half::bf16::from_f32(middle + spread * unit);
                        piece.extend(number.to_le_bytes());
                    }
                }
            }
        }
        file.write_all(&piece[..count * tensor.width()])?;
        left -= count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_hold_whole_tensors() {
        let tensor = |elements: usize| Stored {
            name: "t".into(),
            shape: vec![elements],
            kind: Kind::Codes(u64::MAX),
        };
        let gigabyte = 250_000_000;
        let all = [3, 1, 2, 6, 1].map(|n| tensor(n * gigabyte));
        let sizes: Vec<usize> = shards(&all).iter().map(|s| s.len()).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
    }
}
