//! Rotary positions and attention.

use std::ops::Range;

use dflash_core::backend::host::HostRope;
use dflash_core::backend::{Block, BlockRule, KvShape, Visibility};
use dflash_core::{Error, Result};
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, rms_norm, scaled_dot_product_attention};
use mlx_rs::ops::concatenate;

use crate::array::{at, cast, int, part, size, sizes, wide};
use crate::kv::MlxKv;

/// Cosines and sines of consecutive positions, ready to multiply whole heads.
#[derive(Debug, Clone)]
pub struct MlxRope {
    /// `[1, 1, rows, dims]`, float32: the cosine of feature i and of feature i + dims/2, and the sine
    /// that its partner is multiplied by. `None` if nothing is rotated.
    angles: Option<(Array, Array)>,
    rows: usize,
    dims: usize,
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
        let some = half > 0 && rows > 0;
        Self {
            angles: some.then(|| (both(host.cos(), 1.0), both(host.sin(), -1.0))),
            rows,
            dims,
        }
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
    let Some((cos, sin)) = &rope.angles else {
        return cast(&y, x.dtype());
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

/// What the rows of one call see, and so the key of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    visible: Visibility,
    rows: usize,
    keys: usize,
    block: Option<BlockRule>,
}

/// How scores are masked.
#[derive(Debug, Clone)]
pub(crate) enum Mask {
    /// All is seen.
    None,
    /// Each row sees all keys but those of the rows after it.
    Causal,
    /// `[rows, seen cache rows + block rows]`: what is seen. Rows that see nothing see all here, and
    /// are multiplied by the zeros of the second array `[1, 1, rows, 1]`.
    Some(Array, Option<Array>),
}

impl Sight {
    /// The cache rows that any query sees.
    fn seen(&self) -> Range<usize> {
        let ranges = (0..self.rows).map(|row| self.visible.range(row, self.keys));
        ranges
            .filter(|r| !r.is_empty())
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
            .unwrap_or(0..0)
    }

    /// The block rows that a query sees.
    fn own(&self, row: usize) -> Range<usize> {
        match self.block {
            None => 0..0,
            Some(BlockRule::Causal) => 0..row + 1,
            Some(BlockRule::Bidirectional) => 0..self.rows,
        }
    }

    pub(crate) fn mask(&self) -> Mask {
        let seen = self.seen();
        let beside = if self.block.is_some() { self.rows } else { 0 };
        let width = seen.len() + beside;
        let (mut shown, mut sighted) = (vec![false; self.rows * width], vec![1.0_f32; self.rows]);
        let mut causal = width >= self.rows;
        for (row, mask) in shown.chunks_exact_mut(width.max(1)).enumerate() {
            let (cache, block) = mask.split_at_mut(seen.len());
            let visible = self.visible.range(row, self.keys);
            if visible.is_empty() && self.own(row).is_empty() {
                cache.fill(true);
                sighted[row] = 0.0;
            }
            if !visible.is_empty() {
                cache[visible.start - seen.start..visible.end - seen.start].fill(true);
            }
            block[self.own(row)].fill(true);
            let end = (width + row + 1).saturating_sub(self.rows);
            causal &= mask.iter().enumerate().all(|(i, seen)| *seen == (i < end));
        }
        let blind = sighted.contains(&0.0);
        match (blind, causal) {
            (false, _) if shown.iter().all(|seen| *seen) => Mask::None,
            (false, true) => Mask::Causal,
            _ => Mask::Some(
                Array::from_slice(&shown, &[int(self.rows), int(width)]),
                blind.then(|| Array::from_slice(&sighted, &[1, 1, int(self.rows), 1])),
            ),
        }
    }
}

/// Attention over a cache and a block beside it; `mask` makes or remembers the mask of a sight.
pub(crate) fn attention(
    q: &Array,
    kv: &MlxKv,
    block: Option<Block<'_, Array>>,
    scale: f32,
    visible: &Visibility,
    mask: impl FnOnce(&Sight) -> Mask,
) -> Result<Array> {
    let KvShape { heads, head_dim } = kv.shape();
    let shape = sizes(q);
    let fits = matches!(shape[..], [1, queries, rows, dim]
        if queries > 0 && queries % heads == 0 && rows > 0 && dim == head_dim);
    if !fits {
        let expected = format!("[1, a multiple of {heads}, rows, {head_dim}]");
        return Err(Error::shape(
            "attention: queries",
            expected,
            format!("{shape:?}"),
        ));
    }
    let rows = shape[2];
    if let Some(b) = &block {
        for (what, t) in [
            ("attention: block keys", b.k),
            ("attention: block values", b.v),
        ] {
            if sizes(t) != [1, heads, rows, head_dim] {
                let expected = format!("[1, {heads}, {rows}, {head_dim}]");
                return Err(Error::shape(what, expected, format!("{:?}", t.shape())));
            }
        }
    }
    let sight = Sight {
        visible: *visible,
        rows,
        keys: kv.rows(),
        block: block.as_ref().map(|b| b.rule),
    };
    at("attention", attend(q, kv, block, scale, &sight, mask))
}

fn attend(
    q: &Array,
    kv: &MlxKv,
    block: Option<Block<'_, Array>>,
    scale: f32,
    sight: &Sight,
    mask: impl FnOnce(&Sight) -> Mask,
) -> Result<Array, Exception> {
    let own = |t: &Array| cast(t, q.dtype());
    let cached = kv.view(sight.seen())?;
    let (k, v) = match (cached, block) {
        (None, None) => return mlx_rs::ops::zeros_like(q),
        (Some([k, v]), None) => (own(&k)?, own(&v)?),
        (None, Some(b)) => (own(b.k)?, own(b.v)?),
        (Some([k, v]), Some(b)) => (
            concatenate(&[own(&k)?, own(b.k)?], 2)?,
            concatenate(&[own(&v)?, own(b.v)?], 2)?,
        ),
    };
    type Sdpa<'a> = Option<ScaledDotProductAttentionMask<'a>>;
    match mask(sight) {
        Mask::None => scaled_dot_product_attention(
            q,
            &k,
            &v,
            scale,
            None::<ScaledDotProductAttentionMask<'_>>,
            None,
        ),
        Mask::Causal => {
            let causal: Sdpa<'_> = Some(ScaledDotProductAttentionMask::Causal);
            scaled_dot_product_attention(q, &k, &v, scale, causal, None)
        }
        Mask::Some(seen, sighted) => {
            let y = scaled_dot_product_attention(q, &k, &v, scale, &seen, None)?;
            match sighted {
                Some(sighted) => y.multiply(cast(&sighted, y.dtype())?),
                None => Ok(y),
            }
        }
    }
}
