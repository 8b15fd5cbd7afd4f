//! What a sequence's caches hold, number by number.

use crate::Result;
use crate::backend::Backend;
use crate::backend::reference::Reference;
use crate::cache::{Cache, KvCache};
use crate::models::{LayerCache, TargetState};

/// A backend whose keys and values can be read, for tests.
pub trait InspectKv: Backend {
    /// All keys, then all values, that the storage holds: `[rows, kv_heads, head_dim]` each.
    ///
    /// # Errors
    /// The backend's.
    fn read_kv(&self, kv: &Self::Kv) -> Result<[Vec<f32>; 2]>;
}

impl InspectKv for Reference {
    fn read_kv(&self, kv: &Self::Kv) -> Result<[Vec<f32>; 2]> {
        Ok([kv.keys().to_vec(), kv.values().to_vec()])
    }
}

/// Everything that decides how a sequence goes on; two are equal if they are bit for bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Committed tokens.
    pub position: usize,
    /// One per layer.
    pub layers: Vec<LayerSnapshot>,
}

/// One layer's cache, as bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSnapshot {
    /// Committed tokens that the cache has seen.
    pub len: usize,
    /// Position of the first row that is kept; 0 for a recurrent layer.
    pub first: usize,
    /// Rows that are kept; 0 for a recurrent layer.
    pub rows: usize,
    /// Keys and values, or state and window.
    pub bits: [Vec<u32>; 2],
}

impl Snapshot {
    /// Reads a state.
    ///
    /// # Errors
    /// The backend's.
    pub fn of<B: InspectKv>(backend: &B, state: &TargetState<B>) -> Result<Self> {
        let layers = state
            .caches()
            .iter()
            .map(|cache| match cache {
                LayerCache::Kv(cache) => LayerSnapshot::of_kv(backend, cache),
                LayerCache::Recurrent(cache) => Ok(LayerSnapshot {
                    len: cache.len(),
                    first: 0,
                    rows: 0,
                    bits: [
                        bits(&backend.read(cache.state())?),
                        bits(&backend.read(cache.window())?),
                    ],
                }),
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            position: state.position(),
            layers,
        })
    }

    /// What differs from another snapshot, by layer; empty if nothing does. Numbers may be apart by `tolerance` times the largest
    /// of their kind: 0 for the same bits.
    pub fn differences(&self, plain: &Self, tolerance: f32) -> Vec<String> {
        let mut found = Vec::new();
        if self.position != plain.position {
            found.push(format!(
                "position {}, plain decoding's is {}",
                self.position, plain.position
            ));
        }
        for (i, (own, plain)) in self.layers.iter().zip(&plain.layers).enumerate() {
            let sizes =
                |l: &LayerSnapshot| (l.len, l.first, l.rows, l.bits[0].len(), l.bits[1].len());
            if sizes(own) != sizes(plain) {
                found.push(format!(
                    "layer {i}: length, first position, rows and numbers {:?}, plain decoding's {:?}",
                    sizes(own),
                    sizes(plain)
                ));
                continue;
            }
            for (part, (own, plain)) in own.bits.iter().zip(&plain.bits).enumerate() {
                if let Some(at) = first_apart(own, plain, tolerance) {
                    let part = ["keys or state", "values or window"][part];
                    found.push(format!("layer {i}: {part} differ from number {at} on"));
                }
            }
        }
        found
    }
}

impl LayerSnapshot {
    /// Reads the rows of a cache.
    ///
    /// # Errors
    /// The backend's.
    pub fn of_kv<B: InspectKv>(backend: &B, cache: &KvCache<B>) -> Result<Self> {
        let [keys, values] = backend.read_kv(cache.storage())?;
        Ok(Self {
            len: cache.len(),
            first: cache.first_position(),
            rows: cache.rows(),
            bits: [bits(&keys), bits(&values)],
        })
    }
}

/// The first of two lists of numbers, as bits, that are further apart than `tolerance` times the largest of the second.
pub(super) fn first_apart(own: &[u32], plain: &[u32], tolerance: f32) -> Option<usize> {
    let largest = |m: f32, x: &u32| m.max(f32::from_bits(*x).abs());
    let allowed = match tolerance {
        0.0 => 0.0,
        _ => tolerance * plain.iter().fold(0.0, largest),
    };
    own.iter().zip(plain).position(|(a, b)| {
        let near = || (f32::from_bits(*a) - f32::from_bits(*b)).abs() <= allowed;
        a != b && (tolerance == 0.0 || !near())
    })
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}
