//! Cosines and sines of rotary positions.

use std::rc::Rc;

use crate::backend::RopeSpec;
use crate::{Error, Result};

/// Cosines and sines of consecutive positions, `[rows, dims / 2]` each, times the amplitude.
#[derive(Debug, Clone)]
pub struct HostRope {
    cos: Rc<[f32]>,
    sin: Rc<[f32]>,
    rows: usize,
    dims: usize,
}

impl HostRope {
    /// Angles of positions `first .. first + rows`: `position / period` in float64, their cosine and sine rounded once.
    ///
    /// # Errors
    /// [`Error::Shape`] if the periods do not match the number of rotated features.
    pub fn new(spec: &RopeSpec, first: usize, rows: usize) -> Result<Self> {
        if !spec.dims.is_multiple_of(2) || spec.periods.len() != spec.dims / 2 {
            let expected = format!("half as many periods as {} rotated features", spec.dims);
            return Err(Error::shape("rope", expected, spec.periods.len()));
        }
        // Angles reach a position's full size, which float32 could not take a cosine of.
        #[expect(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
        let angles = (first..first + rows)
            .flat_map(|p| spec.periods.iter().map(move |period| p as f64 / period));
        #[expect(clippy::cast_possible_truncation, reason = "rounded once, here")]
        let narrow = |x: f64| x as f32 * spec.amplitude;
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles.map(|a| (narrow(a.cos()), narrow(a.sin()))).unzip();
        Ok(Self {
            cos: cos.into(),
            sin: sin.into(),
            rows,
            dims: spec.dims,
        })
    }

    /// From numbers `[rows, dims / 2]` that [`HostRope::new`] made.
    pub(super) fn from_parts(cos: Vec<f32>, sin: Vec<f32>, rows: usize, dims: usize) -> Self {
        Self {
            cos: cos.into(),
            sin: sin.into(),
            rows,
            dims,
        }
    }

    /// Cosines, `[rows, dims / 2]`.
    pub fn cos(&self) -> &[f32] {
        &self.cos
    }

    /// Sines, `[rows, dims / 2]`.
    pub fn sin(&self) -> &[f32] {
        &self.sin
    }

    /// Positions.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Features that are rotated.
    pub fn dims(&self) -> usize {
        self.dims
    }
}
