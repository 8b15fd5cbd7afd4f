//! How wide a block is, which proposals are used, and when drafting ends.

use super::target::Verdict;

/// After this many blocks whose draft was not finite, drafting ends for the request.
const NON_FINITE_LIMIT: usize = 2;

/// Older hits count for less by this factor a round.
const DECAY: f32 = 0.95;

/// The choices of one request that depend on how it went so far. Timing is not among them.
#[derive(Debug)]
pub(super) struct Policy {
    block: usize,
    inactive: Option<String>,
    /// Decayed hits of slot 1 by argmax and by the request's noise.
    hits: [f32; 2],
    pub(super) non_finite: usize,
}

impl Policy {
    /// Full blocks of `block` rows; 1 decodes plainly. `inactive` says why, if a draft was wanted and cannot be had.
    pub(super) fn new(block: usize, inactive: Option<String>) -> Self {
        Self {
            block,
            inactive,
            hits: [0.0; 2],
            non_finite: 0,
        }
    }

    /// Rows of the next block when `wanted` tokens are still wanted.
    pub(super) fn rows(&self, wanted: usize) -> usize {
        if self.inactive.is_some() {
            1
        } else {
            self.block.min(wanted + 1)
        }
    }

    /// Rows of a full block.
    pub(super) fn block(&self) -> usize {
        self.block
    }

    /// Whether blocks are drafted.
    pub(super) fn is_drafting(&self) -> bool {
        self.inactive.is_none() && self.block > 1
    }

    /// Why not.
    pub(super) fn inactive_reason(&self) -> Option<&str> {
        self.inactive.as_deref()
    }

    /// Ends drafting for this request.
    pub(super) fn stop_drafting(&mut self, reason: String) {
        tracing::warn!(reason, "drafting ended");
        self.inactive.get_or_insert(reason);
    }

    /// Whether proposals follow the request's noise: the kind whose slot 1 agreed more often lately. Argmax until noise has won.
    pub(super) fn couples(&self) -> bool {
        self.hits[1] > self.hits[0]
    }

    /// Learns from a round.
    pub(super) fn learn(&mut self, verdict: &Verdict) {
        if !verdict.draft_finite {
            self.non_finite += 1;
            if self.non_finite >= NON_FINITE_LIMIT {
                self.stop_drafting(format!(
                    "the draft computed numbers that are not finite in {} blocks",
                    self.non_finite
                ));
            }
        }
        if let (Some(rivals), Some(first)) = (verdict.rivals, verdict.rows.first()) {
            for (hits, id) in self.hits.iter_mut().zip([rivals.argmax, rivals.coupled]) {
                *hits = *hits * DECAY + f32::from(u8::from(id == first.id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Choice, Rivals};

    fn verdict(argmax: u32, coupled: u32, chosen: u32) -> Verdict {
        let rows = vec![Choice {
            id: chosen,
            margin: 1.0,
        }];
        Verdict {
            rows,
            draft_finite: true,
            rivals: Some(Rivals { argmax, coupled }),
            ..Verdict::default()
        }
    }

    #[test]
    fn blocks_shrink_near_the_end() {
        let policy = Policy::new(8, None);
        assert_eq!(
            [20, 7, 6, 1].map(|wanted| policy.rows(wanted)),
            [8, 8, 7, 2]
        );
        assert_eq!(Policy::new(8, Some("no draft".into())).rows(20), 1);
    }

    #[test]
    fn the_proposal_kind_that_hits_more_is_used() {
        let mut policy = Policy::new(8, None);
        assert!(!policy.couples());
        policy.learn(&verdict(1, 2, 2));
        assert!(policy.couples());
        for _ in 0..3 {
            policy.learn(&verdict(1, 2, 1));
        }
        assert!(!policy.couples());
    }

    #[test]
    fn two_blocks_that_are_not_finite_end_drafting() {
        let mut policy = Policy::new(8, None);
        let bad = Verdict {
            draft_finite: false,
            ..Verdict::default()
        };
        policy.learn(&bad);
        assert!(policy.is_drafting());
        policy.learn(&bad);
        assert!(!policy.is_drafting());
        assert_eq!(policy.rows(20), 1);
        assert!(
            policy
                .inactive_reason()
                .is_some_and(|r| r.contains("not finite"))
        );
    }
}
