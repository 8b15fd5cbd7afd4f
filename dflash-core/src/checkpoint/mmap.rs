//! The one place where a file becomes memory.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use super::bytes::Bytes;
use crate::{Error, Result};

/// Maps a whole file for reading.
pub(super) fn map_file(path: &Path) -> Result<Bytes> {
    let io = |source| Error::Io {
        path: path.into(),
        source,
    };
    // Asked before opening, since opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::checkpoint(path, "not a file"));
    }
    if metadata.len() == 0 {
        // An empty range cannot be mapped everywhere.
        return Ok(Bytes::from_static(&[]));
    }
    let file = File::open(path).map_err(io)?;
    #[expect(
        unsafe_code,
        reason = "weights stay in the file instead of being read into memory"
    )]
    // SAFETY: the map is read-only and lives as long as every slice of it, through `Bytes`. Its
    // bytes are only ever read as plain numbers, for which every bit pattern is valid. What the
    // operating system cannot rule out is that another process changes or shortens the file while
    // it is mapped; model files are written once and renamed into place by every tool that
    // downloads them, and the documentation of `Checkpoint::open` states the condition.
    let map = unsafe { Mmap::map(&file) };
    map.map(Bytes::from_map).map_err(io)
}
