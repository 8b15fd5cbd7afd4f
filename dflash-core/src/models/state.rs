//! Caches and position of one sequence: the one owner of the position.

use super::layer::LayerCache;
use crate::backend::Backend;
use crate::cache::{Cache, CacheKind, Rollback};
use crate::spec::StateMemory;
use crate::{Error, Result};

/// One sequence of a target.
#[derive(Debug)]
pub struct TargetState<B: Backend> {
    position: usize,
    caches: Vec<LayerCache<B>>,
    poisoned: Option<String>,
}

impl<B: Backend> TargetState<B> {
    pub(super) fn new(caches: Vec<LayerCache<B>>) -> Self {
        Self {
            position: 0,
            caches,
            poisoned: None,
        }
    }

    /// Committed tokens.
    pub fn position(&self) -> usize {
        self.position
    }

    /// One cache per layer.
    pub fn caches(&self) -> &[LayerCache<B>] {
        &self.caches
    }

    pub(super) fn caches_mut(&mut self) -> &mut [LayerCache<B>] {
        &mut self.caches
    }

    /// An independent copy, for snapshots.
    ///
    /// # Errors
    /// The backend's; or if rows are pending.
    pub fn fork(&self) -> Result<Self> {
        self.check()?;
        let caches = self.caches.iter().map(Cache::fork).collect::<Result<_>>()?;
        Ok(Self {
            position: self.position,
            caches,
            poisoned: None,
        })
    }

    /// Commits the first `rows` pending rows in every layer, or none if a layer cannot.
    pub(super) fn keep(&mut self, rows: usize) -> Result<()> {
        self.prepare(rows)?;
        self.keep_prepared(rows);
        Ok(())
    }

    /// Does all of a commit that can fail. If a layer cannot, all pending rows are dropped.
    pub(super) fn prepare(&mut self, rows: usize) -> Result<()> {
        let prepared = self
            .caches
            .iter_mut()
            .enumerate()
            .try_for_each(|(i, c)| c.prepare(rows).map_err(|e| e.at(format!("layer {i}"))));
        if prepared.is_err() {
            self.discard();
        }
        prepared
    }

    /// Commits what was prepared.
    pub(super) fn keep_prepared(&mut self, rows: usize) {
        for cache in &mut self.caches {
            cache.keep(rows);
        }
        self.position += rows;
        debug_assert!(
            self.caches.iter().all(|c| c.len() == self.position),
            "every cache stands at the sequence's position"
        );
    }

    /// Drops all pending rows.
    pub(super) fn discard(&mut self) {
        for cache in &mut self.caches {
            cache.discard();
        }
    }

    pub(super) fn poison(&mut self, reason: &Error) {
        self.poisoned = Some(reason.to_string());
    }

    pub(super) fn check(&self) -> Result<()> {
        match &self.poisoned {
            Some(reason) => Err(Error::Poisoned {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn memory(&self) -> StateMemory {
        let mut memory = StateMemory::default();
        for cache in &self.caches {
            match cache.kind() {
                CacheKind::Recurrent => memory.recurrent_bytes += cache.bytes(),
                CacheKind::Full | CacheKind::Sliding { .. } => memory.kv_bytes += cache.bytes(),
            }
        }
        memory
    }
}
