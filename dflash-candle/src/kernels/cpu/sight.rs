//! Which keys a query row sees, by position.

use std::ops::Range;

/// What one query row sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// Rows of the cache.
    pub cache: Range<usize>,
    /// Rows of the block.
    pub block: Range<usize>,
}

/// The rule by which the tests' rows see keys; the backend's is `dflash_core::backend::Visibility`.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Position of the first query row; rows follow each other.
    pub(crate) first_query: usize,
    /// Position of the cache's first row.
    pub(crate) first_key: usize,
    /// Valid rows of the cache.
    pub(crate) cache_rows: usize,
    /// Rows of the block, at the positions of the query rows; 0 if there is none.
    pub(crate) block_rows: usize,
    /// A row sees keys with `position − key position < window`.
    pub(crate) window: Option<usize>,
    /// A row sees no key after its own position.
    pub(crate) causal: bool,
}

#[cfg(test)]
impl Sight {
    /// What query row `t` sees.
    ///
    /// The window reaches backwards only: a bidirectional row sees everything after itself.
    pub(crate) fn of_row(&self, t: usize) -> Visible {
        let position = self.first_query + t;
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let end = if self.causal {
            position + 1
        } else {
            usize::MAX
        };
        let clip = |start: usize, rows: usize| {
            let low = first.saturating_sub(start).min(rows);
            low..end.saturating_sub(start).min(rows).max(low)
        };
        Visible {
            cache: clip(self.first_key, self.cache_rows),
            block: clip(self.first_query, self.block_rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sight_follows_positions() {
        let sight = Sight {
            first_query: 10,
            first_key: 4,
            cache_rows: 8,
            block_rows: 0,
            window: Some(3),
            causal: true,
        };
        assert_eq!(
            sight.of_row(0),
            Visible {
                cache: 4..7,
                block: 0..0
            },
            "positions 8, 9, 10"
        );
        assert_eq!(sight.of_row(1).cache, 5..8);
        let block = Sight {
            first_query: 12,
            block_rows: 4,
            causal: false,
            ..sight
        };
        assert_eq!(
            block.of_row(1),
            Visible {
                cache: 7..8,
                block: 0..4
            },
            "position 11, then the whole block"
        );
        assert_eq!(
            Sight {
                window: Some(1),
                ..block
            }
            .of_row(2),
            Visible {
                cache: 8..8,
                block: 2..4
            }
        );
        assert_eq!(
            Sight {
                causal: true,
                window: None,
                ..block
            }
            .of_row(2),
            Visible {
                cache: 0..8,
                block: 0..3
            }
        );
    }
}
