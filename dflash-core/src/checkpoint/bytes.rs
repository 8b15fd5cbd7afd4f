//! A range of a checkpoint's bytes, cheap to clone and to cut.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

/// Bytes of a mapped file, of the program itself, or on the heap.
///
/// Clones and sub-ranges share the owner. The bytes of a file have whatever alignment the file
/// gave them; see [`Bytes::aligned`].
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mmap>),
    Static(&'static [u8]),
    Heap(Arc<Vec<u8>>),
}

/// The alignment of bytes that this module allocates: a cache line.
const ALIGNMENT: usize = 64;

impl Bytes {
    /// Bytes that are part of the program.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self {
            owner: Owner::Static(bytes),
            range: 0..bytes.len(),
        }
    }

    pub(super) fn from_map(map: Mmap) -> Self {
        let range = 0..map.len();
        Self {
            owner: Owner::Mapped(Arc::new(map)),
            range,
        }
    }

    /// A copy on the heap, aligned for every number format.
    pub fn copied(bytes: &[u8]) -> Self {
        let mut heap = vec![0; bytes.len() + ALIGNMENT];
        // A Vec's contents do not move, so the offset stays right. Where no offset exists (it is
        // allowed to say so), the copy is merely unaligned.
        let start = Some(heap.as_ptr().align_offset(ALIGNMENT))
            .filter(|at| *at < ALIGNMENT)
            .unwrap_or(0);
        let range = start..start + bytes.len();
        heap[range.clone()].copy_from_slice(bytes);
        Self {
            owner: Owner::Heap(Arc::new(heap)),
            range,
        }
    }

    /// The part `range`, counted from the start of these bytes.
    ///
    /// # Panics
    /// If the range is outside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of {} bytes",
            self.len()
        );
        let start = self.range.start + range.start;
        Self {
            owner: self.owner.clone(),
            range: start..start + range.len(),
        }
    }

    /// The same bytes if they start at a multiple of `alignment` (a power of two up to 64), else
    /// an aligned copy.
    #[must_use]
    pub fn aligned(&self, alignment: usize) -> Self {
        if self.as_ptr().addr().is_multiple_of(alignment) {
            self.clone()
        } else {
            Self::copied(self)
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Mapped(map) => map,
            Owner::Static(bytes) => bytes,
            Owner::Heap(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Mapped(_) => "mapped",
            Owner::Static(_) => "static",
            Owner::Heap(_) => "heap",
        };
        write!(f, "Bytes({owner}, {} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_slices_and_alignment() {
        let bytes = Bytes::copied(&(0..100).collect::<Vec<u8>>());
        assert!(bytes.as_ptr().addr().is_multiple_of(ALIGNMENT));
        let part = bytes.slice(11..50).slice(2..5);
        assert_eq!(&*part, [13, 14, 15]);
        let moved = part.aligned(8);
        assert_eq!(&*moved, &*part);
        assert!(moved.as_ptr().addr().is_multiple_of(8));
        assert_eq!(
            bytes.aligned(8).as_ptr(),
            bytes.as_ptr(),
            "aligned bytes are not copied"
        );
    }
}
