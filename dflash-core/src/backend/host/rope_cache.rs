//! Angles that were computed before.

use std::collections::VecDeque;
use std::rc::Rc;

use super::HostRope;
use crate::Result;
use crate::backend::RopeSpec;

/// Consecutive positions that are computed together.
const CHUNK: usize = 64;
/// Chunks that are kept: a target's and its draft's, of a few sequences.
const KEPT: usize = 16;

/// Angles of the positions that were asked for lately, so that decoding takes each cosine once.
///
/// Positions are computed in chunks of 64; the 16 chunks used last are kept. Results are those of
/// [`HostRope::new`], bit for bit.
#[derive(Debug, Default)]
pub struct RopeCache {
    /// The chunk used last is in front.
    chunks: VecDeque<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    spec: Rc<RopeSpec>,
    number: usize,
    angles: HostRope,
}

impl RopeCache {
    /// Angles of positions `first .. first + rows`.
    ///
    /// # Errors
    /// As [`HostRope::new`].
    pub fn angles(&mut self, spec: &RopeSpec, first: usize, rows: usize) -> Result<HostRope> {
        if rows > CHUNK {
            return HostRope::new(spec, first, rows);
        }
        let half = spec.dims / 2;
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        let mut position = first;
        while position < first + rows {
            let chunk = self.chunk(spec, position / CHUNK)?;
            let start = position % CHUNK;
            let end = CHUNK.min(start + first + rows - position);
            cos.extend_from_slice(&chunk.cos()[start * half..end * half]);
            sin.extend_from_slice(&chunk.sin()[start * half..end * half]);
            position += end - start;
        }
        Ok(HostRope::from_parts(cos, sin, rows, spec.dims))
    }

    fn chunk(&mut self, spec: &RopeSpec, number: usize) -> Result<&HostRope> {
        let known = |c: &Chunk| c.number == number && *c.spec == *spec;
        let found = match self.chunks.iter().position(known) {
            Some(at) => self.chunks.remove(at),
            None => None,
        };
        let chunk = match found {
            Some(chunk) => chunk,
            None => {
                let same = self.chunks.iter().find(|c| *c.spec == *spec);
                Chunk {
                    spec: same.map_or_else(|| Rc::new(spec.clone()), |c| Rc::clone(&c.spec)),
                    number,
                    angles: HostRope::new(spec, number * CHUNK, CHUNK)?,
                }
            }
        };
        self.chunks.truncate(KEPT - 1);
        self.chunks.push_front(chunk);
        Ok(&self.chunks[0].angles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_angles_are_the_computed_ones() {
        let spec = |base: f64| RopeSpec {
            dims: 6,
            periods: (0..3).map(|i| base.powi(i)).collect(),
            amplitude: 1.25,
        };
        let specs = [spec(10.0), spec(30.0)];
        let mut cache = RopeCache::default();
        // Across chunks, back again, both specs in turn, and more chunks than are kept.
        for first in (0..40).map(|i| i * 53 % 1500).chain([60, 64, 0, 63]) {
            for (spec, rows) in specs
                .iter()
                .zip([8, 64])
                .chain([(&specs[0], 1), (&specs[1], 70)])
            {
                let found = cache.angles(spec, first, rows).expect("periods fit");
                let expected = HostRope::new(spec, first, rows).expect("periods fit");
                assert_eq!((found.cos(), found.sin()), (expected.cos(), expected.sin()));
                assert_eq!((found.rows(), found.dims()), (rows, 6));
            }
        }
        assert!(cache.chunks.len() <= KEPT);
    }

    #[test]
    fn a_spec_that_does_not_fit_is_an_error() {
        let spec = RopeSpec {
            dims: 6,
            periods: vec![1.0],
            amplitude: 1.0,
        };
        assert!(RopeCache::default().angles(&spec, 0, 3).is_err());
    }
}
