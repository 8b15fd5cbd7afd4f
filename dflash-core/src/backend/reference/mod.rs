//! The naive backend: float32 on one processor core, written to be read.
//!
//! It is always built in, needs no library, and is what every other backend is compared with. It is
//! exact by construction: each number of a result is summed in an order that depends on the inner
//! dimension alone, so a row does not depend on the rows beside it. Fused operations are loops over
//! their definitions rather than the composites of [`fallback`](super::fallback), so that comparing the two
//! tests both.
//!
//! Numbers are held as float32 whatever the format asked for; [`upload`](Backend::upload),
//! [`cast`](Backend::cast) and [`embedding`](Backend::embedding) round to the values of that format. Weights
//! keep their file's bytes and are widened row by row in each product.

mod attention;
mod delta;
mod factory;
mod kv;
mod layers;
mod tensor;
mod weight;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

pub use attention::RefRope;
pub use factory::{ReferenceFactory, factory};
pub use kv::RefKv;
pub use tensor::RefTensor;
pub use weight::{RefExperts, RefWeight};

use super::fallback::{self, host};
use super::{
    Backend, Block, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility,
};
use crate::checkpoint::{Experts, WeightSource};
use crate::spec::{ProposalRule, RowRule, Verdict};
use crate::{DType, Error, Result};

/// Handle of the naive backend; clones share the read-back counter.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    readbacks: Rc<Cell<u64>>,
}

impl Reference {
    /// A backend with a counter of its own.
    pub fn new() -> Self {
        Self::default()
    }

    fn count(&self) {
        self.readbacks.set(self.readbacks.get() + 1);
    }
}

impl Backend for Reference {
    type Tensor = RefTensor;
    type Ids = Rc<[u32]>;
    type Weight = RefWeight;
    type Experts = RefExperts;
    type Kv = RefKv;
    type Rope = RefRope;

    fn name(&self) -> &'static str {
        "reference"
    }

    fn device(&self) -> &'static str {
        "cpu"
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn exactness(&self) -> Exactness {
        Exactness::Exact
    }

    fn implementation(&self, _op: Op) -> Implementation {
        Implementation::Native
    }

    fn readbacks(&self) -> u64 {
        self.readbacks.get()
    }

    fn upload(&self, data: &[f32], shape: &[usize], dtype: DType) -> Result<RefTensor> {
        RefTensor::new("uploaded tensor", tensor::rounded(data, dtype), shape)
    }

    fn weight(&self, source: WeightSource) -> Result<RefWeight> {
        RefWeight::load(&source)
    }

    fn experts(&self, source: Experts) -> Result<RefExperts> {
        RefExperts::load(&source)
    }

    fn read(&self, t: &RefTensor) -> Result<Vec<f32>> {
        self.count();
        Ok(t.data().to_vec())
    }

    fn read_ids(&self, ids: &Rc<[u32]>) -> Result<Vec<u32>> {
        self.count();
        Ok(ids.to_vec())
    }

    fn upload_ids(&self, ids: &[u32]) -> Result<Rc<[u32]>> {
        Ok(ids.into())
    }

    fn block_ids(&self, anchor: u32, draft: Option<&Rc<[u32]>>) -> Result<Rc<[u32]>> {
        Ok(std::iter::once(anchor)
            .chain(draft.into_iter().flat_map(|d| d.iter().copied()))
            .collect())
    }

    /// 0 for an axis that the tensor does not have.
    fn dim(&self, t: &RefTensor, axis: usize) -> usize {
        t.shape().get(axis).copied().unwrap_or(0)
    }

    fn reshape(&self, t: &RefTensor, shape: &[usize]) -> Result<RefTensor> {
        t.reshape(shape)
    }

    fn swap_axes(&self, t: &RefTensor, a: usize, b: usize) -> Result<RefTensor> {
        t.swap_axes(a, b)
    }

    fn slice(&self, t: &RefTensor, axis: usize, start: usize, len: usize) -> Result<RefTensor> {
        t.slice(axis, start, len)
    }

    fn concat(&self, parts: &[&RefTensor], axis: usize) -> Result<RefTensor> {
        RefTensor::concat(parts, axis)
    }

    fn cast(&self, t: &RefTensor, dtype: DType) -> Result<RefTensor> {
        Ok(t.rounded(dtype))
    }

    fn add(&self, a: &RefTensor, b: &RefTensor) -> Result<RefTensor> {
        a.zip("add", b, |x, y| x + y)
    }

    fn mul(&self, a: &RefTensor, b: &RefTensor) -> Result<RefTensor> {
        a.zip("mul", b, |x, y| x * y)
    }

    fn affine(&self, a: &RefTensor, factor: f32, offset: f32) -> Result<RefTensor> {
        Ok(a.map(|x| x * factor + offset))
    }

    fn unary(&self, a: &RefTensor, function: Unary) -> Result<RefTensor> {
        Ok(match function {
            Unary::Exp => a.map(f32::exp),
            Unary::Silu => a.map(layers::silu),
            Unary::Sigmoid => a.map(layers::sigmoid),
            Unary::Softplus => a.map(layers::softplus),
            Unary::Tanh => a.map(f32::tanh),
        })
    }

    fn sum_last(&self, a: &RefTensor) -> Result<RefTensor> {
        a.reduce_rows("sum_last", tensor::sum)
    }

    fn linear(
        &self,
        weight: &RefWeight,
        x: &RefTensor,
        bias: Option<&RefTensor>,
    ) -> Result<RefTensor> {
        weight.linear(x, bias)
    }

    fn embedding(&self, weight: &RefWeight, ids: &Rc<[u32]>, dtype: DType) -> Result<RefTensor> {
        let rows = weight.gather(ids)?;
        RefTensor::new(
            "embedding",
            tensor::rounded(&rows, dtype),
            &[1, ids.len(), weight.inputs()],
        )
    }

    fn rms_norm(&self, x: &RefTensor, weight: Option<&RefTensor>, eps: f32) -> Result<RefTensor> {
        layers::rms_norm(x, weight, eps)
    }

    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<RefRope> {
        RefRope::new(spec, first, rows)
    }

    fn norm_rope(
        &self,
        x: &RefTensor,
        norm: Option<(&RefTensor, f32)>,
        angles: &RefRope,
    ) -> Result<RefTensor> {
        match norm {
            Some((weight, eps)) => angles.rotate(&layers::rms_norm(x, Some(weight), eps)?),
            None => angles.rotate(x),
        }
    }

    fn attention(
        &self,
        q: &RefTensor,
        kv: &RefKv,
        block: Option<Block<'_, RefTensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<RefTensor> {
        attention::attention(q, kv, block, scale, visible)
    }

    fn kv_new(&self, shape: KvShape) -> Result<RefKv> {
        RefKv::new(shape)
    }

    fn kv_append(&self, kv: &mut RefKv, k: &RefTensor, v: &RefTensor) -> Result<()> {
        kv.append(k, v)
    }

    fn kv_keep(&self, kv: &mut RefKv, rows: Range<usize>) {
        kv.keep(rows);
    }

    fn kv_fork(&self, kv: &RefKv) -> Result<RefKv> {
        Ok(kv.fork())
    }

    fn kv_bytes(&self, kv: &RefKv) -> usize {
        kv.bytes()
    }

    fn swiglu(&self, gate: &RefWeight, up: &RefWeight, x: &RefTensor) -> Result<RefTensor> {
        weight::swiglu(gate, up, x)
    }

    fn gated_rms_norm(
        &self,
        x: &RefTensor,
        gate: &RefTensor,
        weight: &RefTensor,
        eps: f32,
    ) -> Result<RefTensor> {
        layers::rms_norm(x, Some(weight), eps)?
            .zip("gated_rms_norm", gate, |x, g| x * layers::silu(g))
    }

    fn short_conv(
        &self,
        window: &RefTensor,
        rows: &RefTensor,
        kernel: &RefTensor,
    ) -> Result<RefTensor> {
        layers::short_conv(window, rows, kernel)
    }

    fn gated_delta(
        &self,
        state: &RefTensor,
        mixed: &RefTensor,
        decay: &RefTensor,
        strength: &RefTensor,
        params: &DeltaParams<RefTensor>,
    ) -> Result<(RefTensor, RefTensor)> {
        delta::gated_delta(state, mixed, decay, strength, params)
    }

    fn dynamic_conv(
        &self,
        y: &RefTensor,
        base: &RefTensor,
        dynamic: &RefTensor,
    ) -> Result<RefTensor> {
        layers::dynamic_conv(y, base, dynamic)
    }

    fn moe(
        &self,
        x: &RefTensor,
        logits: &RefTensor,
        experts: &RefExperts,
        params: &MoeParams,
    ) -> Result<RefTensor> {
        experts.run(x, logits, params)
    }

    fn propose(&self, logits: &RefTensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        fallback::upload_picked(self, &host::propose(logits.data(), vocab, rule))
    }

    fn path_select(
        &self,
        logits: &RefTensor,
        hidden: &RefTensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        let rank = path.predecessor.inputs();
        if path.successor.inputs() != rank {
            return Err(Error::shape(
                "path selection: codebook widths",
                rank,
                path.successor.inputs(),
            ));
        }
        fallback::expect_dims(
            self,
            "path selection: hidden rows",
            hidden,
            &[1, rule.rows - 1, rank],
        )?;
        let candidates = host::candidates(logits.data(), vocab, path.top_k)?;
        let mut predecessors = path.predecessor.gather(&[path.anchor])?;
        predecessors.extend(path.predecessor.gather(candidates.ids())?);
        let successors = path.successor.gather(candidates.ids())?;
        let codes = host::Codes {
            rank,
            hidden: hidden.data(),
            predecessors: &predecessors,
            successors: &successors,
        };
        fallback::upload_picked(self, &host::walk(&candidates, &codes, rule))
    }

    fn draw(
        &self,
        logits: &RefTensor,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        let [1, _, vocab] = *logits.shape() else {
            return Err(Error::shape(
                "drawing: logits",
                "[1, rows, vocab]",
                format!("{:?}", logits.shape()),
            ));
        };
        let picked = draft
            .map(|d| host::Picked::from_parts(d.ids.to_vec(), d.finite.data(), d.rivals.as_deref()))
            .transpose()?;
        self.count();
        host::draw(logits.data(), vocab, picked, rule)
    }
}
