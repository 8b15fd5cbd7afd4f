//! How far a row's logits move with the rows that are computed beside it.

use super::target::{Target, host_rows};
use crate::backend::Backend;
use crate::spec::TargetModel;
use crate::{DType, Result};

/// Tokens that are run.
const TOKENS: usize = 16;

/// Rows per pass that are compared with one row per pass: libraries change kernels in between.
const WIDTHS: [usize; 2] = [4, TOKENS];

/// Other texts and longer ones may round worse than the sample.
const SAFETY: f32 = 4.0;

/// Logits of one row per pass against several rows per pass.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowDifference {
    /// Whether all bits are equal.
    pub equal: bool,
    /// The largest difference of a logit; numbers that are not finite are left out.
    pub absolute: f32,
    /// The largest logit.
    pub largest: f32,
}

/// The distance of 1 from the next number of a format.
const fn spacing(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => f32::EPSILON,
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
    }
}

impl<B: Backend> Target<B> {
    /// What a row's logits may move by with the rows beside it: the largest [`row_difference`](Self::row_difference), at least
    /// the spacing of the format's numbers at the largest logit, with a safety factor. In a narrow format a short sample may
    /// show no difference where a longer text does. A target that is not finite measures as 0 and fails when it is used.
    ///
    /// # Errors
    /// The backend's.
    pub fn row_rounding(&self) -> Result<f32> {
        let found = self.row_difference()?;
        let spacing = found.largest * spacing(self.backend().dtype());
        Ok(SAFETY * found.absolute.max(spacing))
    }

    /// Compares one row per pass with several, over a fixed sample of tokens from an empty state.
    ///
    /// # Errors
    /// The backend's.
    pub fn row_difference(&self) -> Result<RowDifference> {
        let alone = self.logits_in_passes(1)?;
        let mut found = RowDifference {
            equal: true,
            ..RowDifference::default()
        };
        for width in WIDTHS {
            let together = self.logits_in_passes(width)?;
            for (a, b) in alone.iter().flatten().zip(together.iter().flatten()) {
                found.equal &= a.to_bits() == b.to_bits();
                let difference = (a - b).abs();
                if difference.is_finite() {
                    found.absolute = found.absolute.max(difference);
                    found.largest = found.largest.max(a.abs());
                }
            }
        }
        Ok(found)
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
