//! A backend whose rows depend, a little, on how many are computed at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::fakes::scramble;
use super::inspect::InspectKv;
use crate::backend::{
    Backend, Block, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility,
};
use crate::checkpoint::{Experts, WeightSource};
use crate::spec::{ProposalRule, RowRule, Verdict};
use crate::{DType, Result};

/// Another backend whose products and attention of several rows are off by a relative error that depends on the number of
/// rows, the row and the column, as those of GPU libraries are that have another kernel for one row. The same call has the
/// same error every time; a row alone has none.
#[derive(Debug, Clone)]
pub struct RowNoise<B: Backend> {
    inner: B,
    relative: f32,
    exactness: Exactness,
    factors: Factors<B>,
}

/// Factors `[rows, columns]`, made once per shape.
type Factors<B> = Rc<RefCell<HashMap<[usize; 2], <B as Backend>::Tensor>>>;

impl<B: Backend> RowNoise<B> {
    /// Errors of up to `relative` of a number, at the tie-tolerant level.
    pub fn new(inner: &B, relative: f32) -> Self {
        Self {
            inner: inner.clone(),
            relative,
            exactness: Exactness::TieTolerant,
            factors: Rc::default(),
        }
    }

    /// The same backend, claiming the exact level: what every check of exactness must catch.
    #[must_use]
    pub fn claiming_exact(mut self) -> Self {
        self.exactness = Exactness::Exact;
        self
    }

    /// Disturbs `[…, rows, columns]` of more than one row, rows on `axis`.
    fn noisy(&self, t: B::Tensor, axis: usize) -> Result<B::Tensor> {
        let b = &self.inner;
        let (rows, columns) = (b.dim(&t, axis), b.dim(&t, axis + 1));
        if rows < 2 {
            return Ok(t);
        }
        let known = self.factors.borrow().get(&[rows, columns]).cloned();
        let factors = match known {
            Some(factors) => factors,
            None => {
                let made = b.upload(&self.factors(rows, columns), &[rows, columns], b.dtype())?;
                let mut all = self.factors.borrow_mut();
                all.insert([rows, columns], made.clone());
                made
            }
        };
        let mut shape = vec![1; axis];
        shape.extend([rows, columns]);
        b.add(&t, &b.mul(&t, &b.reshape(&factors, &shape)?)?)
    }

    fn factors(&self, rows: usize, columns: usize) -> Vec<f32> {
        #[expect(clippy::cast_precision_loss, reason = "24 bits")]
        let unit = |i: usize| (scramble(rows as u64, i as u64) >> 40) as f32 / (1u32 << 23) as f32;
        (0..rows * columns)
            .map(|i| self.relative * (unit(i) - 1.0))
            .collect()
    }

    fn outer(drafted: Drafted<B>) -> Drafted<Self> {
        Drafted {
            ids: drafted.ids,
            rows: drafted.rows,
            finite: drafted.finite,
            rivals: drafted.rivals,
        }
    }
}

/// Methods that pass their arguments on.
macro_rules! pass {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $ty),*) -> $out {
            self.inner.$name($($arg),*)
        })*
    };
}

impl<B: Backend> Backend for RowNoise<B> {
    type Tensor = B::Tensor;
    type Ids = B::Ids;
    type Weight = B::Weight;
    type Experts = B::Experts;
    type Kv = B::Kv;
    type Rope = B::Rope;

    fn exactness(&self) -> Exactness {
        self.exactness
    }

    fn name(&self) -> &'static str {
        "row-noise"
    }

    pass! {
        device() -> &'static str;
        dtype() -> DType;
        implementation(op: Op) -> Implementation;
        readbacks() -> u64;
        upload(data: &[f32], shape: &[usize], dtype: DType) -> Result<Self::Tensor>;
        weight(source: WeightSource) -> Result<Self::Weight>;
        experts(source: Experts) -> Result<Self::Experts>;
        read(t: &Self::Tensor) -> Result<Vec<f32>>;
        read_ids(ids: &Self::Ids) -> Result<Vec<u32>>;
        evaluate(tensors: &[&Self::Tensor]) -> Result<()>;
        upload_ids(ids: &[u32]) -> Result<Self::Ids>;
        block_ids(anchor: u32, draft: Option<&Self::Ids>) -> Result<Self::Ids>;
        dim(t: &Self::Tensor, axis: usize) -> usize;
        reshape(t: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor>;
        swap_axes(t: &Self::Tensor, a: usize, b: usize) -> Result<Self::Tensor>;
        slice(t: &Self::Tensor, axis: usize, start: usize, len: usize) -> Result<Self::Tensor>;
        concat(parts: &[&Self::Tensor], axis: usize) -> Result<Self::Tensor>;
        cast(t: &Self::Tensor, dtype: DType) -> Result<Self::Tensor>;
        add(a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
        mul(a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
        affine(a: &Self::Tensor, factor: f32, offset: f32) -> Result<Self::Tensor>;
        unary(a: &Self::Tensor, function: Unary) -> Result<Self::Tensor>;
        sum_last(a: &Self::Tensor) -> Result<Self::Tensor>;
        embedding(weight: &Self::Weight, ids: &Self::Ids, dtype: DType) -> Result<Self::Tensor>;
        rms_norm(x: &Self::Tensor, weight: Option<&Self::Tensor>, eps: f32) -> Result<Self::Tensor>;
        rope_angles(spec: &RopeSpec, first: usize, rows: usize) -> Result<Self::Rope>;
        norm_rope(x: &Self::Tensor, norm: Option<(&Self::Tensor, f32)>, angles: &Self::Rope) -> Result<Self::Tensor>;
        kv_new(shape: KvShape) -> Result<Self::Kv>;
        kv_append(kv: &mut Self::Kv, k: &Self::Tensor, v: &Self::Tensor) -> Result<()>;
        kv_keep(kv: &mut Self::Kv, rows: Range<usize>) -> ();
        kv_fork(kv: &Self::Kv) -> Result<Self::Kv>;
        kv_bytes(kv: &Self::Kv) -> usize;
        gated_rms_norm(x: &Self::Tensor, gate: &Self::Tensor, weight: &Self::Tensor, eps: f32) -> Result<Self::Tensor>;
        short_conv(window: &Self::Tensor, rows: &Self::Tensor, kernel: &Self::Tensor) -> Result<Self::Tensor>;
        gated_delta(state: &Self::Tensor, mixed: &Self::Tensor, decay: &Self::Tensor, strength: &Self::Tensor, params: &DeltaParams<Self::Tensor>) -> Result<(Self::Tensor, Self::Tensor)>;
        dynamic_conv(y: &Self::Tensor, base: &Self::Tensor, dynamic: &Self::Tensor) -> Result<Self::Tensor>;
    }

    fn linear(
        &self,
        weight: &Self::Weight,
        x: &Self::Tensor,
        bias: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.noisy(self.inner.linear(weight, x, bias)?, 1)
    }

    fn attention(
        &self,
        q: &Self::Tensor,
        kv: &Self::Kv,
        block: Option<Block<'_, Self::Tensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<Self::Tensor> {
        self.noisy(self.inner.attention(q, kv, block, scale, visible)?, 2)
    }

    fn swiglu(
        &self,
        gate: &Self::Weight,
        up: &Self::Weight,
        x: &Self::Tensor,
    ) -> Result<Self::Tensor> {
        self.noisy(self.inner.swiglu(gate, up, x)?, 1)
    }

    fn moe(
        &self,
        x: &Self::Tensor,
        logits: &Self::Tensor,
        experts: &Self::Experts,
        params: &MoeParams,
    ) -> Result<Self::Tensor> {
        self.noisy(self.inner.moe(x, logits, experts, params)?, 1)
    }

    fn propose(&self, logits: &Self::Tensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        Ok(Self::outer(self.inner.propose(logits, rule)?))
    }

    fn path_select(
        &self,
        logits: &Self::Tensor,
        hidden: &Self::Tensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        let path = PathRule::<B> {
            predecessor: path.predecessor,
            successor: path.successor,
            anchor: path.anchor,
            top_k: path.top_k,
        };
        Ok(Self::outer(
            self.inner.path_select(logits, hidden, &path, rule)?,
        ))
    }

    fn draw(
        &self,
        logits: &Self::Tensor,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        let inner = draft.map(|d| Drafted::<B> {
            ids: d.ids.clone(),
            rows: d.rows,
            finite: d.finite.clone(),
            rivals: d.rivals.clone(),
        });
        self.inner.draw(logits, inner.as_ref(), rule)
    }
}

impl<B: InspectKv> InspectKv for RowNoise<B> {
    fn read_kv(&self, kv: &Self::Kv) -> Result<[Vec<f32>; 2]> {
        self.inner.read_kv(kv)
    }
}
