//! How far a row's logits move with the rows that are computed beside it.

use super::target::{Target, host_rows};
use crate::Result;
use crate::backend::Backend;
use crate::spec::TargetModel;

/// Tokens that are run.
const TOKENS: usize = 16;

/// Rows per pass that are compared with one row per pass: libraries change kernels in between.
const WIDTHS: [usize; 2] = [4, TOKENS];

/// Other texts and longer ones may round worse than the sample.
const SAFETY: f32 = 4.0;

impl<B: Backend> Target<B> {
    /// The largest difference of a logit between one row per pass and several, over a fixed sample of tokens, with a safety factor.
    /// 0 if rows do not depend on each other. A target that is not finite measures as 0 and fails when it is used.
    ///
    /// # Errors
    /// The backend's.
    pub fn row_rounding(&self) -> Result<f32> {
        let alone = self.logits_in_passes(1)?;
        let mut largest = 0.0f32;
        for width in WIDTHS {
            let together = self.logits_in_passes(width)?;
            for (a, b) in alone.iter().flatten().zip(together.iter().flatten()) {
                let difference = (a - b).abs();
                if difference.is_finite() {
                    largest = largest.max(difference);
                }
            }
        }
        Ok(SAFETY * largest)
    }

    /// Logits of the sample's rows, from an empty state, in passes of `width` rows.
    fn logits_in_passes(&self, width: usize) -> Result<Vec<Vec<f32>>> {
        let b = self.backend();
        // Any ids will do; a multiplier that shares no factor with most vocabularies spreads them.
        let vocab = self.decoder().vocab_size().max(1);
        #[expect(clippy::cast_possible_truncation, reason = "ids are u32")]
        let ids: Vec<u32> = (0..TOKENS)
            .map(|i| ((i * 7919 + 13) % vocab) as u32)
            .collect();
        let mut state = self.new_state()?;
        let mut rows = Vec::with_capacity(TOKENS);
        for ids in ids.chunks(width) {
            let (h, _) = self.run(&mut state, &b.upload_ids(ids)?, ids.len())?;
            rows.extend(host_rows(b, &self.decoder().logits(&h)?, ids.len())?);
            state.keep(ids.len())?;
        }
        Ok(rows)
    }
}
