//! Heads: norm, rope and attention.

use candle_core::Tensor;
use dflash_core::backend::host::{HostKv, HostRope};
use dflash_core::backend::{Block, BlockRule, KvShape, Visibility};
use dflash_core::{Error, Result};

use super::view::{dense, expect, tensor, view};
use crate::kernels::cpu::{self as kernels, Cpu, Heads, KeysValues, Visible};

/// Heads of `[1, heads, rows, dim]` as `[rows, heads, dim]` without gaps, seen as `[1, heads, rows, dim]` again.
fn heads_tensor(op: &'static str, data: Vec<f32>, heads: Heads) -> Result<Tensor> {
    let t = tensor(op, data, &[1, heads.time, heads.heads, heads.dim])?;
    t.transpose(1, 2).map_err(|e| Error::backend(op, e))
}

/// Where heads lie, if each head's numbers are next to each other; else a copy where they are.
fn heads(op: &'static str, t: &Tensor) -> Result<(Tensor, Heads)> {
    let &[1, heads, time, dim] = t.dims() else {
        return Err(Error::shape(
            op,
            "[1, heads, rows, head_dim]",
            format!("{:?}", t.dims()),
        ));
    };
    let t = if t.stride()[3] == 1 || dim == 1 {
        t.clone()
    } else {
        dense(op, t)?
    };
    let layout = Heads {
        time,
        heads,
        dim,
        time_stride: t.stride()[2],
        head_stride: t.stride()[1],
    };
    Ok((t, layout))
}

/// The rows of heads in order of time, `[rows, heads, dim]`, into `out`.
pub(super) fn gather(cpu: &Cpu, op: &'static str, t: &Tensor, out: &mut [f32]) -> Result<()> {
    let (t, layout) = heads(op, t)?;
    let numbers = view(&t);
    kernels::norm_rope(cpu, numbers.strided(op)?, layout, None, None, out);
    Ok(())
}

/// [`Backend::norm_rope`].
pub(super) fn norm_rope(
    cpu: &Cpu,
    x: &Tensor,
    norm: Option<(&Tensor, f32)>,
    angles: &HostRope,
) -> Result<Tensor> {
    let op = "norm_rope";
    let (x, layout) = heads(op, x)?;
    if layout.time != angles.rows() || layout.dim < angles.dims() {
        let expected = format!("[1, heads, {}, at least {}]", angles.rows(), angles.dims());
        return Err(Error::shape(op, expected, format!("{:?}", x.dims())));
    }
    let numbers = view(&x);
    let weight = norm
        .map(|(w, eps)| expect("norm_rope: weight", w, &[layout.dim]).map(|()| (view(w), eps)))
        .transpose()?;
    let norm = match &weight {
        Some((weight, eps)) => Some(kernels::HeadNorm {
            weight: Some(weight.dense(op)?),
            eps: *eps,
        }),
        None => None,
    };
    let rotation = kernels::Rotation {
        dims: angles.dims(),
        cos: angles.cos(),
        sin: angles.sin(),
    };
    let mut out = vec![0.0; x.elem_count()];
    kernels::norm_rope(
        cpu,
        numbers.strided(op)?,
        layout,
        norm,
        Some(rotation),
        &mut out,
    );
    heads_tensor(op, out, layout)
}

/// [`Backend::attention`].
pub(super) fn attention(
    cpu: &Cpu,
    q: &Tensor,
    kv: &HostKv,
    block: Option<Block<'_, Tensor>>,
    scale: f32,
    visible: &Visibility,
) -> Result<Tensor> {
    let op = "attention";
    let KvShape {
        heads: kv_heads,
        head_dim,
    } = kv.shape();
    let (q, queries) = heads(op, q)?;
    if queries.dim != head_dim || queries.heads % kv_heads != 0 {
        let expected = format!("[1, a multiple of {kv_heads}, rows, {head_dim}]");
        return Err(Error::shape(
            "attention: queries",
            expected,
            format!("{:?}", q.dims()),
        ));
    }
    let own = match &block {
        Some(b) => {
            let shape = [1, kv_heads, queries.time, head_dim];
            expect("attention: block keys", b.k, &shape)?;
            expect("attention: block values", b.v, &shape)?;
            let in_time =
                |t: &Tensor| dense(op, &t.transpose(1, 2).map_err(|e| Error::backend(op, e))?);
            Some((in_time(b.k)?, in_time(b.v)?))
        }
        None => None,
    };
    let own = own.as_ref().map(|(k, v)| (view(k), view(v)));
    let beside = match &own {
        Some((k, v)) => KeysValues {
            keys: k.dense(op)?,
            values: v.dense(op)?,
        },
        None => KeysValues::EMPTY,
    };
    let rule = block.map(|b| b.rule);
    let sees = |row: usize| Visible {
        cache: visible.range(row, kv.rows()),
        block: match rule {
            None => 0..0,
            Some(BlockRule::Causal) => 0..row + 1,
            Some(BlockRule::Bidirectional) => 0..queries.time,
        },
    };
    let seen: Vec<Visible> = (0..queries.time).map(sees).collect();
    let cache = KeysValues {
        keys: kv.keys(),
        values: kv.values(),
    };
    let shape = kernels::Attention {
        queries,
        kv_heads,
        scale,
    };
    let mut out = vec![0.0; q.elem_count()];
    kernels::attention(
        cpu,
        shape,
        view(&q).strided(op)?,
        cache,
        beside,
        &seen,
        &mut out,
    );
    heads_tensor(op, out, queries)
}
