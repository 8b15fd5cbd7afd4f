//! A draft's context: keys and values of committed tokens.

use crate::backend::Backend;
use crate::cache::{Cache, KvCache};
use crate::spec::DraftMemory;

/// One sequence of a draft. It holds committed context only, so it is never rolled back.
#[derive(Debug)]
pub struct DraftState<B: Backend> {
    /// One context per layer.
    pub(super) contexts: Vec<KvCache<B>>,
}

impl<B: Backend> DraftState<B> {
    /// Committed tokens whose rows were absorbed.
    pub fn absorbed(&self) -> usize {
        self.contexts.first().map_or(0, Cache::len)
    }

    /// Rows per layer that the next block can see.
    pub fn rows(&self) -> Vec<usize> {
        self.contexts.iter().map(KvCache::rows).collect()
    }

    /// One context per layer.
    pub fn contexts(&self) -> &[KvCache<B>] {
        &self.contexts
    }

    /// Leaves out rows that no block will see. Only before the first row that is kept.
    pub(crate) fn skip(&mut self, rows: usize) {
        for context in &mut self.contexts {
            context.skip(rows);
        }
    }

    pub(super) fn memory(&self) -> DraftMemory {
        DraftMemory {
            rows: self.contexts.iter().map(KvCache::rows).max().unwrap_or(0),
            bytes: self.contexts.iter().map(Cache::bytes).sum(),
        }
    }
}
