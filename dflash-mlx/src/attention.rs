//! Attention.

use std::ops::Range;

use dflash_core::backend::{Block, BlockRule, KvShape, Visibility};
use dflash_core::{Error, Result};
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::ops::concatenate;

use crate::array::{at, cast, int, sizes};
use crate::kernels::metal::Kernels;
use crate::kv::MlxKv;

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

/// Attention over a cache and a block beside it, by a kernel of our own if it takes it; `mask` makes or remembers
/// the mask of a sight.
pub(crate) fn attention(
    q: &Array,
    kv: &MlxKv,
    block: Option<Block<'_, Array>>,
    scale: f32,
    visible: &Visibility,
    kernels: &Kernels,
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
    let own = kernels.attention(q, kv, block.as_ref(), scale, visible);
    if let Some(y) = at("attention", own)? {
        return Ok(y);
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
