//! A backend that does one thing wrong, on demand.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use super::inspect::InspectKv;
use crate::backend::{
    Backend, Block, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility,
};
use crate::checkpoint::{Experts, WeightSource};
use crate::spec::{ProposalRule, RowRule, Verdict};
use crate::{DType, Error, Result};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call after so many returns an error.
    Fail(usize),
    /// The attention layer of this number keeps one row too many of every block that loses rows.
    KeepTooMuch(usize),
    /// Gated-delta scans over fewer rows than a whole block leave the state as it was.
    ForgetReplay {
        /// Rows of a whole block.
        block: usize,
    },
}

/// Another backend with a fault in it; clones share the fault.
#[derive(Debug, Clone)]
pub struct Faulty<B: Backend> {
    inner: B,
    fault: Rc<Cell<Option<Fault>>>,
    calls: Rc<Cell<usize>>,
    keeps: Rc<Cell<usize>>,
    layers: Rc<Cell<usize>>,
    dtype: Rc<Cell<Option<DType>>>,
}

impl<B: Backend> Faulty<B> {
    /// A backend without a fault yet.
    pub fn new(inner: &B) -> Self {
        Self {
            inner: inner.clone(),
            fault: Rc::default(),
            calls: Rc::default(),
            keeps: Rc::default(),
            layers: Rc::default(),
            dtype: Rc::default(),
        }
    }

    /// Has the fault from now on, or none. Calls are counted from here.
    pub fn set(&self, fault: Option<Fault>) {
        self.fault.set(fault);
        self.calls.set(0);
        self.keeps.set(0);
    }

    /// How many attention layers take turns in [`Fault::KeepTooMuch`].
    pub fn set_layers(&self, layers: usize) {
        self.layers.set(layers);
    }

    /// Rounds the residual stream, products and attention to a format, as a backend with such activations does. Not a fault.
    pub fn set_dtype(&self, dtype: DType) {
        self.dtype.set(Some(dtype));
    }

    fn rounded(&self, t: Result<B::Tensor>) -> Result<B::Tensor> {
        match self.dtype.get() {
            Some(dtype) => self.inner.cast(&t?, dtype),
            None => t,
        }
    }

    /// Calls that could have failed since the fault was set.
    pub fn calls(&self) -> usize {
        self.calls.get()
    }

    fn call(&self, op: &'static str) -> Result<()> {
        let call = self.calls.get();
        self.calls.set(call + 1);
        if self.fault.get() == Some(Fault::Fail(call)) {
            return Err(Error::backend(op, format!("injected at call {call}")));
        }
        Ok(())
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

/// Methods that count as a call and pass their arguments on; those marked `activations` round their result.
macro_rules! pass {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $ty),*) -> Result<$out> {
            self.call(stringify!($name))?;
            self.inner.$name($($arg),*)
        })*
    };
    (activations $($name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(fn $name(&self, $($arg: $ty),*) -> Result<B::Tensor> {
            self.call(stringify!($name))?;
            self.rounded(self.inner.$name($($arg),*))
        })*
    };
}

impl<B: Backend> Backend for Faulty<B> {
    type Tensor = B::Tensor;
    type Ids = B::Ids;
    type Weight = B::Weight;
    type Experts = B::Experts;
    type Kv = B::Kv;
    type Rope = B::Rope;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn device(&self) -> &'static str {
        self.inner.device()
    }

    fn dtype(&self) -> DType {
        self.dtype.get().unwrap_or_else(|| self.inner.dtype())
    }

    fn exactness(&self) -> Exactness {
        self.inner.exactness()
    }

    fn implementation(&self, op: Op) -> Implementation {
        self.inner.implementation(op)
    }

    fn readbacks(&self) -> u64 {
        self.inner.readbacks()
    }

    fn dim(&self, t: &Self::Tensor, axis: usize) -> usize {
        self.inner.dim(t, axis)
    }

    fn kv_bytes(&self, kv: &Self::Kv) -> usize {
        self.inner.kv_bytes(kv)
    }

    fn kv_keep(&self, kv: &mut Self::Kv, rows: Range<usize>) {
        let keep = self.keeps.get();
        self.keeps.set(keep + 1);
        let turn = keep % self.layers.get().max(1);
        let extra = usize::from(self.fault.get() == Some(Fault::KeepTooMuch(turn)));
        self.inner.kv_keep(kv, rows.start..rows.end + extra);
    }

    pass! {
        upload(data: &[f32], shape: &[usize], dtype: DType) -> Self::Tensor;
        weight(source: WeightSource) -> Self::Weight;
        experts(source: Experts) -> Self::Experts;
        read(t: &Self::Tensor) -> Vec<f32>;
        read_ids(ids: &Self::Ids) -> Vec<u32>;
        evaluate(tensors: &[&Self::Tensor]) -> ();
        upload_ids(ids: &[u32]) -> Self::Ids;
        block_ids(anchor: u32, draft: Option<&Self::Ids>) -> Self::Ids;
        reshape(t: &Self::Tensor, shape: &[usize]) -> Self::Tensor;
        swap_axes(t: &Self::Tensor, a: usize, b: usize) -> Self::Tensor;
        slice(t: &Self::Tensor, axis: usize, start: usize, len: usize) -> Self::Tensor;
        concat(parts: &[&Self::Tensor], axis: usize) -> Self::Tensor;
        cast(t: &Self::Tensor, dtype: DType) -> Self::Tensor;
        affine(a: &Self::Tensor, factor: f32, offset: f32) -> Self::Tensor;
        unary(a: &Self::Tensor, function: Unary) -> Self::Tensor;
        sum_last(a: &Self::Tensor) -> Self::Tensor;
        embedding(weight: &Self::Weight, ids: &Self::Ids, dtype: DType) -> Self::Tensor;
        rms_norm(x: &Self::Tensor, weight: Option<&Self::Tensor>, eps: f32) -> Self::Tensor;
        rope_angles(spec: &RopeSpec, first: usize, rows: usize) -> Self::Rope;
        norm_rope(x: &Self::Tensor, norm: Option<(&Self::Tensor, f32)>, angles: &Self::Rope) -> Self::Tensor;
        kv_new(shape: KvShape) -> Self::Kv;
        kv_append(kv: &mut Self::Kv, k: &Self::Tensor, v: &Self::Tensor) -> ();
        kv_fork(kv: &Self::Kv) -> Self::Kv;
        gated_rms_norm(x: &Self::Tensor, gate: &Self::Tensor, weight: &Self::Tensor, eps: f32) -> Self::Tensor;
        short_conv(window: &Self::Tensor, rows: &Self::Tensor, kernel: &Self::Tensor) -> Self::Tensor;
        dynamic_conv(y: &Self::Tensor, base: &Self::Tensor, dynamic: &Self::Tensor) -> Self::Tensor;
    }

    pass! {
        activations
        add(a: &Self::Tensor, b: &Self::Tensor);
        mul(a: &Self::Tensor, b: &Self::Tensor);
        linear(weight: &Self::Weight, x: &Self::Tensor, bias: Option<&Self::Tensor>);
        attention(q: &Self::Tensor, kv: &Self::Kv, block: Option<Block<'_, Self::Tensor>>, scale: f32, visible: &Visibility);
        swiglu(gate: &Self::Weight, up: &Self::Weight, x: &Self::Tensor);
        moe(x: &Self::Tensor, logits: &Self::Tensor, experts: &Self::Experts, params: &MoeParams);
    }

    fn gated_delta(
        &self,
        state: &Self::Tensor,
        mixed: &Self::Tensor,
        decay: &Self::Tensor,
        strength: &Self::Tensor,
        params: &DeltaParams<Self::Tensor>,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.call("gated_delta")?;
        let (y, next) = self
            .inner
            .gated_delta(state, mixed, decay, strength, params)?;
        match self.fault.get() {
            Some(Fault::ForgetReplay { block }) if self.dim(mixed, 1) < block => {
                Ok((y, state.clone()))
            }
            _ => Ok((y, next)),
        }
    }

    fn propose(&self, logits: &Self::Tensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        self.call("propose")?;
        Ok(Self::outer(self.inner.propose(logits, rule)?))
    }

    fn path_select(
        &self,
        logits: &Self::Tensor,
        hidden: &Self::Tensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        self.call("path_select")?;
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
        self.call("draw")?;
        let inner = draft.map(|d| Drafted::<B> {
            ids: d.ids.clone(),
            rows: d.rows,
            finite: d.finite.clone(),
            rivals: d.rivals.clone(),
        });
        self.inner.draw(logits, inner.as_ref(), rule)
    }
}

impl<B: InspectKv> InspectKv for Faulty<B> {
    fn read_kv(&self, kv: &Self::Kv) -> Result<[Vec<f32>; 2]> {
        self.inner.read_kv(kv)
    }
}
