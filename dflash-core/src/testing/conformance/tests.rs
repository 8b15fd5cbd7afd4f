//! The comparison itself: it passes what is right and catches what is not.

use std::ops::Range;
use std::rc::Rc;

use super::{Failure, check, expect, row_invariance};
use crate::backend::host::{HostKv, HostRope};
use crate::backend::reference::{RefExperts, RefTensor, RefWeight, Reference};
use crate::backend::{
    Backend, Block, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility, fallback,
};
use crate::checkpoint::{Experts, WeightSource};
use crate::spec::{ProposalRule, RowRule, Verdict};
use crate::{DType, Result};

/// The reference's required operations with the composite defaults, one operation of which may be wrong.
#[derive(Debug, Clone)]
struct Altered {
    inner: Reference,
    dtype: DType,
    wrong: Option<&'static str>,
}

impl Default for Altered {
    fn default() -> Self {
        Self {
            inner: Reference::new(),
            dtype: DType::F32,
            wrong: None,
        }
    }
}

impl Altered {
    fn with(wrong: &'static str) -> Self {
        Self {
            wrong: Some(wrong),
            ..Self::default()
        }
    }

    fn is(&self, op: &str) -> bool {
        self.wrong == Some(op)
    }

    /// Adds a thousandth of itself to the last number if `op` is the wrong one.
    fn last(&self, op: &str, t: Result<RefTensor>) -> Result<RefTensor> {
        let t = t?;
        if !self.is(op) {
            return Ok(t);
        }
        let mut numbers = t.data().to_vec();
        if let Some(last) = numbers.last_mut() {
            *last += 1e-3 * last.abs() + 1e-4;
        }
        self.inner.upload(&numbers, t.shape(), DType::F32)
    }
}

fn mine(d: Drafted<Altered>) -> Drafted<Reference> {
    Drafted {
        ids: d.ids,
        rows: d.rows,
        finite: d.finite,
        rivals: d.rivals,
    }
}

fn theirs(d: Drafted<Reference>) -> Drafted<Altered> {
    Drafted {
        ids: d.ids,
        rows: d.rows,
        finite: d.finite,
        rivals: d.rivals,
    }
}

impl Backend for Altered {
    type Tensor = RefTensor;
    type Ids = Rc<[u32]>;
    type Weight = RefWeight;
    type Experts = RefExperts;
    type Kv = HostKv;
    type Rope = HostRope;

    fn name(&self) -> &'static str {
        "altered"
    }
    fn device(&self) -> &'static str {
        "cpu"
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn exactness(&self) -> Exactness {
        Exactness::Exact
    }
    fn implementation(&self, op: Op) -> Implementation {
        match op {
            Op::Draw | Op::Propose | Op::PathSelect => Implementation::Composite,
            _ => Implementation::Native,
        }
    }
    fn readbacks(&self) -> u64 {
        if self.is("readbacks") {
            0
        } else {
            self.inner.readbacks()
        }
    }
    fn upload(&self, data: &[f32], shape: &[usize], dtype: DType) -> Result<RefTensor> {
        self.inner.upload(data, shape, dtype)
    }
    fn weight(&self, source: WeightSource) -> Result<RefWeight> {
        self.inner.weight(source)
    }
    fn experts(&self, source: Experts) -> Result<RefExperts> {
        self.inner.experts(source)
    }
    fn read(&self, t: &RefTensor) -> Result<Vec<f32>> {
        self.inner.read(t)
    }
    fn read_ids(&self, ids: &Rc<[u32]>) -> Result<Vec<u32>> {
        self.inner.read_ids(ids)
    }
    fn upload_ids(&self, ids: &[u32]) -> Result<Rc<[u32]>> {
        self.inner.upload_ids(ids)
    }
    fn block_ids(&self, anchor: u32, draft: Option<&Rc<[u32]>>) -> Result<Rc<[u32]>> {
        let anchor = if self.is("block_ids") { 0 } else { anchor };
        self.inner.block_ids(anchor, draft)
    }
    fn dim(&self, t: &RefTensor, axis: usize) -> usize {
        self.inner.dim(t, axis)
    }
    fn reshape(&self, t: &RefTensor, shape: &[usize]) -> Result<RefTensor> {
        self.last("reshape", self.inner.reshape(t, shape))
    }
    fn swap_axes(&self, t: &RefTensor, a: usize, b: usize) -> Result<RefTensor> {
        if self.is("swap_axes") {
            Ok(t.clone())
        } else {
            self.inner.swap_axes(t, a, b)
        }
    }
    fn slice(&self, t: &RefTensor, axis: usize, start: usize, len: usize) -> Result<RefTensor> {
        let start = if self.is("slice") { 0 } else { start };
        self.inner.slice(t, axis, start, len)
    }
    fn concat(&self, parts: &[&RefTensor], axis: usize) -> Result<RefTensor> {
        self.last("concat", self.inner.concat(parts, axis))
    }
    fn cast(&self, t: &RefTensor, dtype: DType) -> Result<RefTensor> {
        self.last("cast", self.inner.cast(t, dtype))
    }
    fn add(&self, a: &RefTensor, b: &RefTensor) -> Result<RefTensor> {
        self.last("add", self.inner.add(a, b))
    }
    fn mul(&self, a: &RefTensor, b: &RefTensor) -> Result<RefTensor> {
        self.last("mul", self.inner.mul(a, b))
    }
    fn affine(&self, a: &RefTensor, factor: f32, offset: f32) -> Result<RefTensor> {
        self.last("affine", self.inner.affine(a, factor, offset))
    }
    fn unary(&self, a: &RefTensor, function: Unary) -> Result<RefTensor> {
        self.last("unary", self.inner.unary(a, function))
    }
    fn sum_last(&self, a: &RefTensor) -> Result<RefTensor> {
        self.last("sum_last", self.inner.sum_last(a))
    }
    fn linear(
        &self,
        weight: &RefWeight,
        x: &RefTensor,
        bias: Option<&RefTensor>,
    ) -> Result<RefTensor> {
        let y = self.last("linear", self.inner.linear(weight, x, bias))?;
        // The rounding of a library that has another kernel for one row.
        if self.is("rows") && x.shape()[1] > 1 {
            self.inner.affine(&y, 1.0 + f32::EPSILON, 0.0)
        } else {
            Ok(y)
        }
    }
    fn embedding(&self, weight: &RefWeight, ids: &Rc<[u32]>, dtype: DType) -> Result<RefTensor> {
        self.last("embedding", self.inner.embedding(weight, ids, dtype))
    }
    fn rms_norm(&self, x: &RefTensor, weight: Option<&RefTensor>, eps: f32) -> Result<RefTensor> {
        let eps = if self.is("rms_norm") { 1e-5 } else { eps };
        self.inner.rms_norm(x, weight, eps)
    }
    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<HostRope> {
        let first = if self.is("norm_rope") {
            first + 1
        } else {
            first
        };
        self.inner.rope_angles(spec, first, rows)
    }
    fn norm_rope(
        &self,
        x: &RefTensor,
        norm: Option<(&RefTensor, f32)>,
        angles: &HostRope,
    ) -> Result<RefTensor> {
        self.inner.norm_rope(x, norm, angles)
    }
    fn attention(
        &self,
        q: &RefTensor,
        kv: &HostKv,
        block: Option<Block<'_, RefTensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<RefTensor> {
        let mut visible = *visible;
        if self.is("attention") {
            visible.window = visible.window.map(|w| w + 1);
        }
        self.inner.attention(q, kv, block, scale, &visible)
    }
    fn kv_new(&self, shape: KvShape) -> Result<HostKv> {
        self.inner.kv_new(shape)
    }
    fn kv_append(&self, kv: &mut HostKv, k: &RefTensor, v: &RefTensor) -> Result<()> {
        if self.is("kv_append") && k.shape()[1] != kv.shape().heads {
            return Ok(());
        }
        self.inner.kv_append(kv, k, v)
    }
    fn kv_keep(&self, kv: &mut HostKv, rows: Range<usize>) {
        let rows = if self.is("kv_keep") {
            0..rows.len()
        } else {
            rows
        };
        self.inner.kv_keep(kv, rows);
    }
    fn kv_fork(&self, kv: &HostKv) -> Result<HostKv> {
        let mut fork = self.inner.kv_fork(kv)?;
        if self.is("kv_fork") {
            self.inner.kv_keep(&mut fork, 1..kv.rows());
        }
        Ok(fork)
    }
    fn kv_bytes(&self, kv: &HostKv) -> usize {
        if self.is("kv_bytes") {
            usize::MAX
        } else {
            self.inner.kv_bytes(kv)
        }
    }
    fn swiglu(&self, gate: &RefWeight, up: &RefWeight, x: &RefTensor) -> Result<RefTensor> {
        let (gate, up) = if self.is("swiglu") {
            (up, gate)
        } else {
            (gate, up)
        };
        fallback::swiglu(self, gate, up, x)
    }
    fn gated_rms_norm(
        &self,
        x: &RefTensor,
        gate: &RefTensor,
        weight: &RefTensor,
        eps: f32,
    ) -> Result<RefTensor> {
        self.last(
            "gated_rms_norm",
            fallback::gated_rms_norm(self, x, gate, weight, eps),
        )
    }
    fn short_conv(
        &self,
        window: &RefTensor,
        rows: &RefTensor,
        kernel: &RefTensor,
    ) -> Result<RefTensor> {
        self.last(
            "short_conv",
            fallback::short_conv(self, window, rows, kernel),
        )
    }
    fn gated_delta(
        &self,
        state: &RefTensor,
        mixed: &RefTensor,
        decay: &RefTensor,
        strength: &RefTensor,
        params: &DeltaParams<RefTensor>,
    ) -> Result<(RefTensor, RefTensor)> {
        let (y, state) = fallback::gated_delta(self, state, mixed, decay, strength, params)?;
        Ok((y, self.last("gated_delta", Ok(state))?))
    }
    fn dynamic_conv(
        &self,
        y: &RefTensor,
        base: &RefTensor,
        dynamic: &RefTensor,
    ) -> Result<RefTensor> {
        self.last(
            "dynamic_conv",
            fallback::dynamic_conv(self, y, base, dynamic),
        )
    }
    fn moe(
        &self,
        x: &RefTensor,
        logits: &RefTensor,
        experts: &RefExperts,
        params: &MoeParams,
    ) -> Result<RefTensor> {
        let normalize = params.normalize != self.is("moe");
        self.inner.moe(
            x,
            logits,
            experts,
            &MoeParams {
                normalize,
                ..*params
            },
        )
    }
    fn propose(&self, logits: &RefTensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        if self.is("propose") {
            return self
                .inner
                .propose(
                    logits,
                    &ProposalRule {
                        position: rule.position + 1,
                        ..*rule
                    },
                )
                .map(theirs);
        }
        fallback::propose(self, logits, rule)
    }
    fn path_select(
        &self,
        logits: &RefTensor,
        hidden: &RefTensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        let top_k = if self.is("path_select") {
            1
        } else {
            path.top_k
        };
        fallback::path_select(self, logits, hidden, &PathRule { top_k, ..*path }, rule)
    }
    fn draw(
        &self,
        logits: &RefTensor,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        if self.is("draw") {
            // A draft that is not finite is believed.
            let draft = draft.map(|d| {
                Ok::<_, crate::Error>(Drafted {
                    finite: self.inner.upload(&[1.0], &[1], DType::F32)?,
                    ..mine(d.clone())
                })
            });
            return self.inner.draw(logits, draft.transpose()?.as_ref(), rule);
        }
        fallback::draw(self, logits, draft, rule)
    }
}

#[test]
fn the_reference_passes() {
    expect(&check(&Reference::new()), &[]).expect("equal to itself");
}

#[test]
fn composites_equal_the_reference() {
    expect(&check(&Altered::default()), &[]).expect("defaults and reference agree");
}

#[test]
fn results_in_a_narrow_format_are_within_its_tolerance() {
    for dtype in [DType::Bf16, DType::F16] {
        expect(
            &check(&Altered {
                dtype,
                ..Altered::default()
            }),
            &[],
        )
        .expect("rounded once");
    }
}

#[test]
fn a_wrong_operation_is_caught_by_its_name() {
    type Check = fn(&Altered) -> Vec<Failure>;
    let checks: [(Check, &[&str]); 18] = [
        (
            super::shapes,
            &["reshape", "swap_axes", "slice", "concat", "cast"],
        ),
        (
            super::elementwise,
            &["add", "mul", "affine", "unary", "sum_last"],
        ),
        (super::linear, &["linear"]),
        (super::embedding, &["embedding", "block_ids"]),
        (super::rms_norm, &["rms_norm"]),
        (super::norm_rope, &["norm_rope"]),
        (super::attention, &["attention"]),
        (
            super::cache,
            &["kv_append", "kv_keep", "kv_fork", "kv_bytes"],
        ),
        (super::swiglu, &["swiglu"]),
        (super::gated_rms_norm, &["gated_rms_norm"]),
        (super::short_conv, &["short_conv"]),
        (super::gated_delta, &["gated_delta"]),
        (super::dynamic_conv, &["dynamic_conv"]),
        (super::moe, &["moe"]),
        (super::propose, &["propose"]),
        (super::path_select, &["path_select"]),
        (super::draw, &["draw"]),
        (super::readbacks, &["readbacks"]),
    ];
    for (check, ops) in checks {
        for op in ops {
            let failures = check(&Altered::with(op));
            assert!(
                failures.iter().any(|f| f.op == *op),
                "`{op}` is wrong and passes"
            );
        }
    }
}

#[test]
fn rows_that_depend_on_their_number_are_caught() {
    let failures = row_invariance(&Altered::with("rows"));
    assert!(
        failures.iter().any(|f| f.op == "linear") && failures.iter().any(|f| f.op == "swiglu"),
        "{failures:?}"
    );
    assert!(
        failures
            .iter()
            .all(|f| f.op == "linear" || f.op == "swiglu"),
        "only those use products: {failures:?}"
    );
    // One unit in the last place is within every other comparison.
    assert!(
        check(&Altered::with("rows"))
            .iter()
            .all(|f| f.case.starts_with("rows:"))
    );
}

#[test]
fn expectations_fail_in_both_directions() {
    let failure = Failure {
        op: "linear",
        case: "f16 weight, 3 rows".into(),
        difference: "off".into(),
    };
    let failures = std::slice::from_ref(&failure);
    assert_eq!(expect(failures, &[("linear", "f16")]), Ok(()));
    let unexpected = expect(failures, &[]).expect_err("not in the list");
    assert!(
        unexpected.contains("linear [f16 weight, 3 rows]: off"),
        "{unexpected}"
    );
    let repaired = expect(failures, &[("linear", "f16"), ("moe", "")]).expect_err("moe passes");
    assert!(
        repaired.contains("moe") && !repaired.contains("linear"),
        "{repaired}"
    );
}
