//! Keys and values of one attention layer.

use super::{Cache, CacheKind, Rollback};
use crate::backend::{Backend, KvShape};
use crate::{Error, Result};

/// Keys and values of one layer, over all positions or over a window.
///
/// A window keeps the `window - 1` rows that the next query can see, plus the pending block: rows
/// leave at the front only when a block is committed, so discarding a block is exact after the
/// window has wrapped too. What a query sees is decided by positions, never by buffer indices.
#[derive(Debug)]
pub struct KvCache<B: Backend> {
    backend: B,
    kv: B::Kv,
    window: Option<usize>,
    /// Position of the first row that is kept.
    first: usize,
    /// Committed rows that are kept.
    rows: usize,
    pending: usize,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache. With a window, a query sees itself and the `window - 1` positions before it.
    ///
    /// # Errors
    /// The backend's.
    pub fn new(backend: &B, shape: KvShape, window: Option<usize>) -> Result<Self> {
        Ok(Self {
            backend: backend.clone(),
            kv: backend.kv_new(shape)?,
            window,
            first: 0,
            rows: 0,
            pending: 0,
        })
    }

    /// The backend's storage, pending rows included.
    pub fn storage(&self) -> &B::Kv {
        &self.kv
    }

    /// Position of the storage's first row.
    pub fn first_position(&self) -> usize {
        self.first
    }

    /// The window, if the layer slides.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Committed rows that a later query can still see.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds rows `[1, kv_heads, rows, head_dim]` as pending.
    ///
    /// # Errors
    /// The backend's; nothing was added then.
    pub fn append(&mut self, k: &B::Tensor, v: &B::Tensor) -> Result<()> {
        let rows = self.backend.dim(k, 2);
        self.backend.kv_append(&mut self.kv, k, v)?;
        self.pending += rows;
        Ok(())
    }

    /// Commits rows at once: those of a prompt, or a draft's context.
    ///
    /// # Errors
    /// The backend's; nothing was added then.
    pub fn push(&mut self, k: &B::Tensor, v: &B::Tensor) -> Result<()> {
        self.append(k, v)?;
        self.keep(self.pending);
        Ok(())
    }

    /// Skips rows that no query will see: the cache must be empty of visible rows.
    pub fn skip(&mut self, rows: usize) {
        debug_assert!(
            self.rows == 0 && self.pending == 0,
            "rows are skipped only before the first one that is kept"
        );
        self.first += rows;
    }
}

impl<B: Backend> Cache for KvCache<B> {
    fn len(&self) -> usize {
        self.first + self.rows
    }

    fn kind(&self) -> CacheKind {
        self.window
            .map_or(CacheKind::Full, |window| CacheKind::Sliding { window })
    }

    fn bytes(&self) -> usize {
        self.backend.kv_bytes(&self.kv)
    }

    fn can_trim(&self) -> bool {
        // A window has dropped the rows that an earlier query would see.
        self.first == 0
    }

    fn fork(&self) -> Result<Self> {
        if self.pending > 0 {
            return Err(Error::Rollback {
                layer: 0,
                reason: format!("{} rows are neither committed nor discarded", self.pending),
            });
        }
        Ok(Self {
            backend: self.backend.clone(),
            kv: self.backend.kv_fork(&self.kv)?,
            ..*self
        })
    }
}

impl<B: Backend> Rollback for KvCache<B> {
    fn pending(&self) -> usize {
        self.pending
    }

    fn prepare(&mut self, _rows: usize) -> Result<()> {
        Ok(())
    }

    fn keep(&mut self, rows: usize) {
        debug_assert!(rows <= self.pending, "only pending rows can be kept");
        let rows = self.rows + rows;
        let gone = self.window.map_or(0, |w| rows.saturating_sub(w - 1));
        self.backend.kv_keep(&mut self.kv, gone..rows);
        self.first += gone;
        self.rows = rows - gone;
        self.pending = 0;
    }

    fn discard(&mut self) {
        self.backend.kv_keep(&mut self.kv, 0..self.rows);
        self.pending = 0;
    }
}
