//! Rotary positions.

use dflash_core::backend::RopeSpec;
use dflash_core::backend::host::HostRope;
use dflash_core::{Error, Result};
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::fast::{self, rms_norm};
use mlx_rs::ops::concatenate;

use crate::array::{at, cast, int, part, size, sizes, wide};

/// Consecutive positions, ready to turn whole heads.
#[derive(Debug, Clone)]
pub struct MlxRope {
    turn: Turn,
    rows: usize,
    dims: usize,
}

#[derive(Debug, Clone)]
enum Turn {
    /// Nothing is rotated.
    None,
    /// `[1, 1, rows, dims]`, float32: the cosine of feature i and of feature i + dims/2, and the sine
    /// that its partner is multiplied by.
    Angles(Array, Array),
    /// Periods `[dims / 2]`, float32, and the first position: MLX makes the angles itself.
    Fused(Array, i32),
}

impl MlxRope {
    /// Angles are made in float64 on the host, which Apple's GPUs lack.
    pub(crate) fn new(host: &HostRope) -> Self {
        let (rows, dims) = (host.rows(), host.dims());
        let half = dims / 2;
        let both = |numbers: &[f32], sign: f32| {
            let twice: Vec<f32> = numbers
                .chunks_exact(half.max(1))
                .flat_map(|row| row.iter().map(move |x| sign * x).chain(row.iter().copied()))
                .collect();
            Array::from_slice(&twice, &[1, 1, int(rows), int(dims)])
        };
        let turn = match half > 0 && rows > 0 {
            true => Turn::Angles(both(host.cos(), 1.0), both(host.sin(), -1.0)),
            false => Turn::None,
        };
        Self { turn, rows, dims }
    }

    /// For MLX's own kernel, one operation where the angles of the host take ten. Its cosines are good to about 2^-13, below
    /// what half formats keep of them but not below float32's rounding. It has no amplitude; `None` for specs with one.
    pub(crate) fn fused(spec: &RopeSpec, first: usize, rows: usize) -> Option<Self> {
        let first = i32::try_from(first).ok()?;
        let fits = spec.amplitude == 1.0
            && spec.dims > 0
            && rows > 0
            && 2 * spec.periods.len() == spec.dims;
        #[expect(clippy::cast_possible_truncation, reason = "the kernel reads float32")]
        let periods: Vec<f32> = spec.periods.iter().map(|p| *p as f32).collect();
        fits.then(|| Self {
            turn: Turn::Fused(Array::from_slice(&periods, &[int(periods.len())]), first),
            rows,
            dims: spec.dims,
        })
    }
}

/// Norm per head, then rotation of `[1, heads, rows, head_dim]`.
pub(crate) fn norm_rope(x: &Array, norm: Option<(&Array, f32)>, rope: &MlxRope) -> Result<Array> {
    let shape = sizes(x);
    if !matches!(shape[..], [1, _, rows, dim] if rows == rope.rows && dim >= rope.dims) {
        let expected = format!("[1, heads, {}, at least {}]", rope.rows, rope.dims);
        return Err(Error::shape("norm_rope", expected, format!("{shape:?}")));
    }
    at("norm_rope", rotated(x, norm, rope))
}

fn rotated(x: &Array, norm: Option<(&Array, f32)>, rope: &MlxRope) -> Result<Array, Exception> {
    let y = wide(x)?;
    let y = match norm {
        Some((weight, eps)) => rms_norm(&y, Some(&wide(weight)?), eps)?,
        None => y,
    };
    let (cos, sin) = match &rope.turn {
        Turn::None => return cast(&y, x.dtype()),
        Turn::Angles(cos, sin) => (cos, sin),
        Turn::Fused(periods, first) => {
            let turned = fast::rope(&y, int(rope.dims), false, None, 1.0, *first, periods)?;
            return cast(&turned, x.dtype());
        }
    };
    let (half, dim) = (rope.dims / 2, size(x, 3));
    let turning = part(&y, 3, 0, rope.dims)?;
    let partners = concatenate(&[part(&y, 3, half, half)?, part(&y, 3, 0, half)?], 3)?;
    let mut turned = turning.multiply(cos)?.add(partners.multiply(sin)?)?;
    if dim > rope.dims {
        turned = concatenate(&[turned, part(&y, 3, rope.dims, dim - rope.dims)?], 3)?;
    }
    cast(&turned, x.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIM: usize = 24;

    fn spec(amplitude: f32) -> RopeSpec {
        RopeSpec {
            dims: 16,
            periods: (0..8)
                .map(|i| 10_000_f64.powf(f64::from(i) / 8.0))
                .collect(),
            amplitude,
        }
    }

    /// MLX's own angles turn the same features by the same amounts, also of a part of a head and far into a text.
    #[test]
    fn fused_rotation_is_that_of_the_angles() {
        let (heads, rows) = (3, 5);
        let x: Vec<f32> = (0..heads * rows * DIM)
            .map(|i| (i as f32 * 0.37).sin())
            .collect();
        let x = Array::from_slice(&x, &ints4(heads, rows));
        let weight = Array::from_slice(&[0.5_f32; DIM], &[int(DIM)]);
        for first in [0, 1, 4000] {
            let table = MlxRope::new(&HostRope::new(&spec(1.0), first, rows).expect("a fair spec"));
            let fused = MlxRope::fused(&spec(1.0), first, rows).expect("a fair spec");
            assert!(matches!(fused.turn, Turn::Fused(..)));
            for norm in [None, Some((&weight, 1e-6))] {
                let turned = [&table, &fused].map(|rope| {
                    let y = norm_rope(&x, norm, rope).expect("it runs");
                    y.try_as_slice::<f32>().expect("numbers").to_vec()
                });
                let far = turned[0].iter().zip(&turned[1]).map(|(a, b)| (a - b).abs());
                let far = far.fold(0.0, f32::max);
                assert!(far < 2e-3, "{far} at position {first}");
                assert!(turned[0] != x.try_as_slice::<f32>().expect("numbers"));
            }
        }
    }

    fn ints4(heads: usize, rows: usize) -> [i32; 4] {
        [1, int(heads), int(rows), int(DIM)]
    }

    #[test]
    fn an_amplitude_takes_the_angles() {
        assert!(MlxRope::fused(&spec(1.1), 0, 1).is_none());
        assert!(MlxRope::fused(&spec(1.0), usize::MAX, 1).is_none());
    }
}
