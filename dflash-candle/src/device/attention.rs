//! Rotary positions and attention, from candle's products.

use std::ops::Range;

use candle_core::{D, Device, Tensor};
use dflash_core::backend::host::HostRope;
use dflash_core::backend::{Block, BlockRule, KvShape, RopeSpec, Visibility};
use dflash_core::{Error, Result};

use super::kv::DeviceKv;
use super::maths::{rms_norm, softmax, wide};

/// Cosines and sines of consecutive positions.
#[derive(Debug, Clone)]
pub struct DeviceRope {
    /// `[1, 1, rows, dims / 2]`, float32, times the amplitude; `None` if nothing is rotated.
    angles: Option<(Tensor, Tensor)>,
    rows: usize,
    half: usize,
}

impl DeviceRope {
    pub(super) fn new(spec: &RopeSpec, first: usize, rows: usize, device: &Device) -> Result<Self> {
        // Angles need float64, which Apple's GPUs lack: they are made on the host.
        let host = HostRope::new(spec, first, rows)?;
        let half = host.dims() / 2;
        let upload = |data: &[f32]| {
            Tensor::from_slice(data, (1, 1, rows, half), device)
                .map_err(|e| Error::backend("rope_angles", e))
        };
        let angles = if half > 0 && rows > 0 {
            Some((upload(host.cos())?, upload(host.sin())?))
        } else {
            None
        };
        Ok(Self { angles, rows, half })
    }
}

/// Norm per head, then rotation.
pub(super) fn norm_rope(
    x: &Tensor,
    norm: Option<(&Tensor, f32)>,
    rope: &DeviceRope,
) -> Result<Tensor> {
    let fits = matches!(x.dims(), &[1, _, rows, dim] if rows == rope.rows && dim >= 2 * rope.half);
    if !fits {
        let expected = format!("[1, heads, {}, at least {}]", rope.rows, 2 * rope.half);
        return Err(Error::shape(
            "norm_rope",
            expected,
            format!("{:?}", x.dims()),
        ));
    }
    rotated(x, norm, rope).map_err(|e| Error::backend("norm_rope", e))
}

fn rotated(
    x: &Tensor,
    norm: Option<(&Tensor, f32)>,
    rope: &DeviceRope,
) -> candle_core::Result<Tensor> {
    let y = match norm {
        Some((weight, eps)) => rms_norm(x, Some(weight), eps)?,
        None => wide(x)?,
    };
    let Some((cos, sin)) = &rope.angles else {
        return y.to_dtype(x.dtype());
    };
    let half = rope.half;
    let (a, b) = (y.narrow(3, 0, half)?, y.narrow(3, half, half)?);
    let first = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let second = (a.broadcast_mul(sin)? + b.broadcast_mul(cos)?)?;
    let rest = y.dim(3)? - 2 * half;
    let turned = if rest > 0 {
        Tensor::cat(&[&first, &second, &y.narrow(3, 2 * half, rest)?], 3)?
    } else {
        Tensor::cat(&[&first, &second], 3)?
    };
    turned.to_dtype(x.dtype())
}

/// What the rows of one call see, and so the key of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sight {
    visible: Visibility,
    rows: usize,
    keys: usize,
    block: Option<BlockRule>,
}

/// What is added to a score that counts for nothing. Infinity is avoided: candle compiles its Metal
/// kernels with fast math, which promises nothing about it.
const UNSEEN: f32 = -1e30;

/// A mask that is added to scores.
#[derive(Debug, Clone)]
pub(super) struct Mask {
    /// `[1, 1, rows, seen cache rows + block rows]`: 0 or [`UNSEEN`]; `None` if all is seen.
    hidden: Option<Tensor>,
    /// `[1, 1, rows, 1]`: 0 for rows that see nothing, else 1; `None` if each sees something.
    sighted: Option<Tensor>,
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

    /// The mask on a device.
    pub(super) fn mask(&self, device: &Device) -> candle_core::Result<Mask> {
        let seen = self.seen();
        let beside = if self.block.is_some() { self.rows } else { 0 };
        let width = seen.len() + beside;
        let mut hidden = vec![UNSEEN; self.rows * width];
        let mut sighted = vec![1.0f32; self.rows];
        for (row, mask) in hidden.chunks_exact_mut(width.max(1)).enumerate() {
            let (cache, block) = mask.split_at_mut(seen.len());
            let visible = self.visible.range(row, self.keys);
            if visible.is_empty() && self.own(row).is_empty() {
                // Softmax needs something to see; the result is taken away again.
                cache.fill(0.0);
                sighted[row] = 0.0;
                continue;
            }
            if !visible.is_empty() {
                cache[visible.start - seen.start..visible.end - seen.start].fill(0.0);
            }
            block[self.own(row)].fill(0.0);
        }
        Ok(Mask {
            hidden: upload_unless(&hidden, 0.0, (1, 1, self.rows, width), device)?,
            sighted: upload_unless(&sighted, 1.0, (1, 1, self.rows, 1), device)?,
        })
    }
}

/// Numbers on the device, or nothing if all of them are `neutral`.
fn upload_unless(
    data: &[f32],
    neutral: f32,
    shape: (usize, usize, usize, usize),
    device: &Device,
) -> candle_core::Result<Option<Tensor>> {
    data.iter()
        .any(|x| *x != neutral)
        .then(|| Tensor::from_slice(data, shape, device))
        .transpose()
}

/// Attention over a cache and a block beside it; `mask` makes or remembers the mask of a sight.
///
/// Query heads that share a key head are rows of one product. Cache and block are multiplied
/// apart, so that the cache is never copied; only rows that a query sees are read.
pub(super) fn attention(
    q: &Tensor,
    kv: &DeviceKv,
    block: Option<Block<'_, Tensor>>,
    scale: f32,
    visible: &Visibility,
    mask: impl FnOnce(&Sight) -> candle_core::Result<Mask>,
) -> Result<Tensor> {
    let KvShape { heads, head_dim } = kv.shape();
    let &[1, query_heads, rows, dim] = q.dims() else {
        return Err(Error::shape(
            "attention: queries",
            "[1, heads, rows, head_dim]",
            format!("{:?}", q.dims()),
        ));
    };
    if dim != head_dim || query_heads % heads != 0 || query_heads == 0 || rows == 0 {
        let expected = format!("[1, a multiple of {heads}, rows, {head_dim}]");
        return Err(Error::shape(
            "attention: queries",
            expected,
            format!("{:?}", q.dims()),
        ));
    }
    if let Some(b) = &block {
        for (what, t) in [
            ("attention: block keys", b.k),
            ("attention: block values", b.v),
        ] {
            if t.dims() != [1, heads, rows, head_dim] {
                let expected = format!("[1, {heads}, {rows}, {head_dim}]");
                return Err(Error::shape(what, expected, format!("{:?}", t.dims())));
            }
        }
    }
    let sight = Sight {
        visible: *visible,
        rows,
        keys: kv.rows(),
        block: block.as_ref().map(|b| b.rule),
    };
    let seen = sight.seen();
    let mut parts = Vec::new();
    if !seen.is_empty() {
        parts.push(kv.view(seen)?);
    }
    let run = move || -> candle_core::Result<Tensor> {
        if let Some(b) = &block {
            let own = |t: &Tensor| t.squeeze(0)?.to_dtype(q.dtype())?.contiguous();
            parts.push((own(b.k)?, own(b.v)?));
        }
        if parts.is_empty() {
            return q.zeros_like()?.contiguous();
        }
        let group = query_heads / heads;
        let stacked = q.contiguous()?.reshape((heads, group * rows, head_dim))?;
        weighted(&stacked, &parts, (group, rows), scale, &mask(&sight)?)?
            .to_dtype(q.dtype())?
            .reshape((1, query_heads, rows, head_dim))
    };
    run().map_err(|e| Error::backend("attention", e))
}

/// Softmax-weighted values, `[heads, group * rows, head_dim]` in float32.
fn weighted(
    q: &Tensor,
    parts: &[(Tensor, Tensor)],
    (group, rows): (usize, usize),
    scale: f32,
    mask: &Mask,
) -> candle_core::Result<Tensor> {
    let (heads, stacked, _) = q.dims3()?;
    let scores = parts
        .iter()
        .map(|(k, _)| wide(&q.matmul(&k.t()?)?))
        .collect::<candle_core::Result<Vec<_>>>()?;
    let scores = match scores.as_slice() {
        [one] => one.clone(),
        several => Tensor::cat(several, 2)?,
    };
    let width = scores.dim(2)?;
    let mut scores = scores
        .affine(f64::from(scale), 0.0)?
        .reshape((heads, group, rows, width))?;
    if let Some(hidden) = &mask.hidden {
        scores = scores.broadcast_add(hidden)?;
    }
    let mut p = softmax(&scores)?;
    if let Some(sighted) = &mask.sighted {
        p = p.broadcast_mul(sighted)?;
    }
    let p = p.reshape((heads, stacked, width))?.to_dtype(q.dtype())?;
    let mut first = 0;
    let mut sum: Option<Tensor> = None;
    for (_, v) in parts {
        let count = v.dim(1)?;
        let part = wide(&p.narrow(D::Minus1, first, count)?.contiguous()?.matmul(v)?)?;
        first += count;
        sum = Some(match sum {
            None => part,
            Some(sum) => (sum + part)?,
        });
    }
    sum.ok_or_else(|| candle_core::Error::msg("nothing to attend to"))
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    fn sight(first_query: usize, window: Option<usize>, block: Option<BlockRule>) -> Sight {
        let visible = Visibility {
            first_key: 0,
            first_query,
            window,
        };
        Sight {
            visible,
            rows: 3,
            keys: 6,
            block,
        }
    }

    /// Per row, which columns are seen; nothing if all are.
    fn seen(sight: &Sight) -> Option<Vec<Vec<bool>>> {
        let mask = sight.mask(&Device::Cpu).expect("a small mask").hidden?;
        let rows: Vec<Vec<f32>> = mask
            .squeeze(0)
            .and_then(|t| t.squeeze(0)?.to_vec2())
            .expect("numbers");
        Some(
            rows.iter()
                .map(|row| row.iter().map(|x| *x == 0.0).collect())
                .collect(),
        )
    }

    #[test]
    fn masks_cover_the_rows_that_some_query_sees() {
        assert_eq!(
            seen(&sight(6, None, Some(BlockRule::Bidirectional))),
            None,
            "all is seen"
        );
        let (x, o) = (true, false);
        // Positions 3, 4, 5 with a window of 2 see rows 2 to 5.
        let windowed = sight(3, Some(2), None);
        assert_eq!(windowed.seen(), 2..6);
        let rows = [[x, x, o, o], [o, x, x, o], [o, o, x, x]].map(Vec::from);
        assert_eq!(seen(&windowed), Some(rows.to_vec()));
        // The first query still sees row 5 of the cache, the others only their block.
        let leaving = sight(6, Some(2), Some(BlockRule::Causal));
        assert_eq!(leaving.seen(), 5..6);
        let rows = [[x, x, o, o], [o, x, x, o], [o, x, x, x]].map(Vec::from);
        assert_eq!(seen(&leaving), Some(rows.to_vec()));
    }

    #[test]
    fn a_row_that_sees_nothing_is_zero() {
        let shape = KvShape {
            heads: 1,
            head_dim: 2,
        };
        let ones = Tensor::ones((1, 1, 3, 2), DType::F32, &Device::Cpu).expect("small");
        let mut kv = DeviceKv::new(shape, DType::F32, &Device::Cpu).expect("sizes above 0");
        let run = |kv: &DeviceKv, first_query, window| -> Vec<f32> {
            let visible = Visibility {
                first_key: 0,
                first_query,
                window,
            };
            let y = attention(&ones, kv, None, 1.0, &visible, |s| s.mask(&Device::Cpu));
            let y = y.expect("fits").flatten_all().expect("numbers");
            y.to_vec1().expect("numbers")
        };
        assert_eq!(run(&kv, 0, None), [0.0; 6], "an empty cache");
        kv.append(&ones, &ones).expect("fits");
        assert_eq!(
            run(&kv, 2, Some(1)),
            [1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
            "the others are past the cache"
        );
    }
}
