//! The naive backend: float32 on one processor core, written to be read.
//!
//! It is always built in, needs no library, and is what every other backend is compared with. It is
//! exact by construction: each number of a result is summed in an order that depends on the inner
//! dimension alone, so a row does not depend on the rows beside it. Fused operations are loops over
//! their definitions rather than the composites of [`fallback`], so that comparing the two
//! tests both.
//!
//! Numbers are held as float32 whatever the format asked for; [`upload`](Backend::upload),
//! [`cast`](Backend::cast) and [`embedding`](Backend::embedding) round to the values of that format. Weights
//! keep their file's bytes and are widened row by row in each product.

mod attention;
mod delta;
mod experts;
mod factory;
mod layers;
mod tensor;
mod weight;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

pub use experts::RefExperts;
pub use factory::{ReferenceFactory, factory};
pub use tensor::RefTensor;
pub use weight::RefWeight;

use super::fallback::{self, host};
use super::host::{HostKv, HostRope};
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
    type Kv = HostKv;
    type Rope = HostRope;

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

    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<HostRope> {
        HostRope::new(spec, first, rows)
    }

    fn norm_rope(
        &self,
        x: &RefTensor,
        norm: Option<(&RefTensor, f32)>,
        angles: &HostRope,
    ) -> Result<RefTensor> {
        match norm {
            Some((weight, eps)) => {
                attention::rotate(&layers::rms_norm(x, Some(weight), eps)?, angles)
            }
            None => attention::rotate(x, angles),
        }
    }

    fn attention(
        &self,
        q: &RefTensor,
        kv: &HostKv,
        block: Option<Block<'_, RefTensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<RefTensor> {
        attention::attention(q, kv, block, scale, visible)
    }

    fn kv_new(&self, shape: KvShape) -> Result<HostKv> {
        HostKv::new(shape)
    }

    fn kv_append(&self, kv: &mut HostKv, k: &RefTensor, v: &RefTensor) -> Result<()> {
        let KvShape { heads, head_dim } = kv.shape();
        let rows = self.dim(k, 2);
        k.expect("keys to append", &[1, heads, rows, head_dim])?;
        v.expect("values to append", &[1, heads, rows, head_dim])?;
        let (k, v) = (k.swap_axes(1, 2)?, v.swap_axes(1, 2)?);
        let (keys, values) = kv.extend(rows);
        keys.copy_from_slice(k.data());
        values.copy_from_slice(v.data());
        Ok(())
    }

    fn kv_keep(&self, kv: &mut HostKv, rows: Range<usize>) {
        kv.keep(rows);
    }

    fn kv_fork(&self, kv: &HostKv) -> Result<HostKv> {
        Ok(kv.fork())
    }

    fn kv_bytes(&self, kv: &HostKv) -> usize {
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
        fallback::upload_picked(self, &host::propose(logits.data(), vocab, rule)?)
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
            &[1, logits.shape()[1], rank],
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
        fallback::upload_picked(self, &host::walk(&candidates, &codes, rule)?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Bytes, StoredTensor, StoredType};

    fn weight(b: &Reference, outputs: usize, inputs: usize) -> RefWeight {
        let bytes: Vec<u8> = (0..outputs * inputs)
            .flat_map(|i| [0, 0, if i % 2 == 0 { 0x80 } else { 0 }, 0x3F])
            .collect();
        let tensor = StoredTensor {
            name: "w".into(),
            dtype: StoredType::F32,
            shape: vec![outputs, inputs],
            bytes: Bytes::copied(&bytes),
        };
        b.weight(WeightSource::Plain(tensor)).expect("a matrix")
    }

    #[test]
    fn only_reading_counts_and_clones_share_the_count() {
        let b = Reference::new();
        let other = b.clone();
        let logits = b
            .upload(&[0.0, 1.0, 2.0, 0.0], &[1, 2, 2], DType::F32)
            .expect("four numbers");
        let rule = ProposalRule {
            rows: 3,
            position: 0,
            coupling: None,
        };
        let drafted = b.propose(&logits, &rule).expect("fits");
        assert_eq!(b.readbacks(), 0);
        assert_eq!(other.read_ids(&drafted.ids).expect("ids"), [1, 0]);
        assert_eq!(b.readbacks(), 1);
        let occurred = crate::spec::Occurred::default();
        let rule = RowRule {
            sampling: crate::spec::Sampling::default(),
            position: 0,
            occurred: &occurred,
        };
        b.draw(&logits, Some(&drafted), &rule)
            .expect("fits")
            .expect("finite");
        assert_eq!(other.readbacks(), 2);
    }

    #[test]
    fn misfits_on_the_way_to_tokens_are_errors() {
        let b = Reference::new();
        let zeros = |shape: &[usize]| {
            b.upload(&vec![0.0; shape.iter().product()], shape, DType::F32)
                .expect("zeros")
        };
        let rule = |rows| ProposalRule {
            rows,
            position: 0,
            coupling: None,
        };
        for (shape, rows) in [
            (&[1, 2, 4][..], 2),
            (&[2, 4], 3),
            (&[2, 2, 4], 3),
            (&[1, 2, 0], 3),
            (&[1, 2, 4], 0),
        ] {
            assert!(
                matches!(
                    b.propose(&zeros(shape), &rule(rows)),
                    Err(Error::Shape { .. })
                ),
                "{shape:?} {rows}"
            );
        }
        let (codes, short, narrow) = (weight(&b, 4, 3), weight(&b, 3, 3), weight(&b, 4, 2));
        let run = |predecessor, successor, anchor, top_k, hidden: &[usize]| {
            let path = PathRule {
                predecessor,
                successor,
                anchor,
                top_k,
            };
            b.path_select(&zeros(&[1, 2, 4]), &zeros(hidden), &path, &rule(3))
        };
        assert!(run(&codes, &codes, 3, 2, &[1, 2, 3]).is_ok());
        let wrong = [
            run(&codes, &codes, 4, 2, &[1, 2, 3]),
            run(&codes, &codes, 3, 0, &[1, 2, 3]),
            run(&codes, &codes, 3, 2, &[1, 1, 3]),
            run(&codes, &narrow, 3, 2, &[1, 2, 3]),
            run(&narrow, &codes, 3, 2, &[1, 2, 3]),
            run(&codes, &short, 0, 4, &[1, 2, 3]),
            run(&short, &codes, 0, 4, &[1, 2, 3]),
        ];
        for (case, found) in wrong.iter().enumerate() {
            assert!(
                matches!(found, Err(Error::Shape { .. })),
                "case {case}: {found:?}"
            );
        }
        let occurred = crate::spec::Occurred::default();
        let rule = RowRule {
            sampling: crate::spec::Sampling::default(),
            position: 0,
            occurred: &occurred,
        };
        for shape in [&[1, 2, 4][..], &[1, 0, 4], &[1, 1, 0], &[4]] {
            assert!(
                matches!(b.draw(&zeros(shape), None, &rule), Err(Error::Shape { .. })),
                "{shape:?} without a draft"
            );
        }
        assert_eq!(b.dim(&zeros(&[1, 2]), 2), 0);
    }
}
