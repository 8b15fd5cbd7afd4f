//! Caches of one sequence, and how they are put back.
//!
//! Positions belong to the model's state; a cache knows how many rows it holds and where its first
//! one stands. Verification adds rows that are *pending* until the loop decides how many to keep.

mod kv;
mod recurrent;

pub use kv::KvCache;
pub use recurrent::RecurrentCache;
pub(crate) use recurrent::Tape;

use crate::Result;

/// What a cache is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// Keys and values of all positions.
    Full,
    /// Keys and values of the newest positions.
    Sliding {
        /// How many positions a query sees, itself included.
        window: usize,
    },
    /// A gated-delta state and the window of its short convolution.
    Recurrent,
}

/// One layer's memory of a sequence.
pub trait Cache: Sized {
    /// Committed tokens that the cache has seen.
    fn len(&self) -> usize;

    /// True before the first token.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is made of.
    fn kind(&self) -> CacheKind;

    /// Bytes that it holds, spare capacity included.
    fn bytes(&self) -> usize;

    /// Whether committed rows can be taken away again (a recurrent state cannot go back).
    fn can_trim(&self) -> bool;

    /// An independent copy. Explicit, since a cheap clone would share memory that the next append overwrites.
    ///
    /// # Errors
    /// The backend's; or if rows are pending.
    fn fork(&self) -> Result<Self>;
}

/// Keeping the first rows of the last verify.
///
/// In two steps, so that a block is committed in all layers or in none: [`prepare`](Self::prepare)
/// does all that can fail, [`keep`](Self::keep) only swaps what was prepared.
pub trait Rollback {
    /// Rows of the last verify that are not committed yet.
    fn pending(&self) -> usize;

    /// Computes what the cache will hold when `rows` of the pending rows are kept.
    ///
    /// # Errors
    /// The backend's. The cache still holds all pending rows.
    fn prepare(&mut self, rows: usize) -> Result<()>;

    /// Commits the rows that were prepared and drops the rest.
    fn keep(&mut self, rows: usize);

    /// Drops all pending rows: exactly the cache before the verify.
    fn discard(&mut self);
}
