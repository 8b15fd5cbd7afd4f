//! Candle on the processor: Candle's tensors, this crate's kernels.
//!
//! Candle's own products widen both operands at every call and their rounding depends on the number
//! of rows. The kernels here widen in registers and are row-invariant, so this backend is exact.
//! Candle carries shapes, views and memory.

mod choose;
mod heads;
mod products;
mod recurrent;
mod view;
mod weight;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use candle_core::{D, Tensor};
use dflash_core::backend::fallback;
use dflash_core::backend::host::{HostKv, HostRope, RopeCache};
use dflash_core::backend::{
    Backend, Block, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility,
};
use dflash_core::checkpoint::{Experts, WeightSource};
use dflash_core::spec::{ProposalRule, RowRule, Verdict};
use dflash_core::{DType, Error, Result};

use self::view::{dense, expect, join, rows_of, tensor, view};
pub use self::weight::{CpuExperts, CpuWeight};
use crate::kernels::cpu as kernels;
use crate::kernels::cpu::{Cpu, MAX_KEY_DIM};

/// Candle on the processor; clones share threads, rope angles and the read-back counter.
#[derive(Debug, Clone)]
pub struct CandleCpu {
    cpu: Rc<Cpu>,
    readbacks: Rc<Cell<u64>>,
    ropes: Rc<RefCell<RopeCache>>,
}

impl CandleCpu {
    /// A backend with `threads` threads of its own, the caller's included.
    pub fn new(threads: usize) -> Self {
        Self::with(Cpu::new(threads))
    }

    fn with(cpu: Cpu) -> Self {
        Self {
            cpu: Rc::new(cpu),
            readbacks: Rc::default(),
            ropes: Rc::default(),
        }
    }

    fn count(&self) {
        self.readbacks.set(self.readbacks.get() + 1);
    }
}

/// Applies a function to numbers in place.
fn in_place(op: &'static str, t: &Tensor, function: impl FnOnce(&mut [f32])) -> Result<Tensor> {
    let t = dense(op, t)?;
    let mut data = view(&t).dense(op)?.to_vec();
    function(&mut data);
    tensor(op, data, t.dims())
}

/// A kernel on two tensors of one shape, or Candle's broadcasting operation.
fn pairwise(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    kernel: impl FnOnce(&[f32], &[f32]) -> Vec<f32>,
    broadcast: impl FnOnce(&Tensor, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    if a.dims() != b.dims() {
        return broadcast(a, b).map_err(|e| Error::backend(op, e));
    }
    let (a, b) = (dense(op, a)?, dense(op, b)?);
    let (x, y) = (view(&a), view(&b));
    tensor(op, kernel(x.dense(op)?, y.dense(op)?), a.dims())
}

impl Backend for CandleCpu {
    type Tensor = Tensor;
    type Ids = Rc<[u32]>;
    type Weight = CpuWeight;
    type Experts = CpuExperts;
    type Kv = HostKv;
    type Rope = HostRope;

    fn name(&self) -> &'static str {
        "candle"
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

    fn upload(&self, data: &[f32], shape: &[usize], dtype: DType) -> Result<Tensor> {
        if data.len() != shape.iter().product::<usize>() {
            return Err(Error::shape(
                "upload",
                format!("{shape:?}"),
                format!("{} numbers", data.len()),
            ));
        }
        self.cast(&tensor("upload", data.to_vec(), shape)?, dtype)
    }

    fn weight(&self, source: WeightSource) -> Result<CpuWeight> {
        CpuWeight::new(source)
    }

    fn experts(&self, source: Experts) -> Result<CpuExperts> {
        CpuExperts::new(source)
    }

    fn read(&self, t: &Tensor) -> Result<Vec<f32>> {
        self.count();
        let t = dense("read", t)?;
        let numbers = view(&t);
        Ok(numbers.dense("read")?.to_vec())
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

    fn dim(&self, t: &Tensor, axis: usize) -> usize {
        t.dims().get(axis).copied().unwrap_or(0)
    }

    fn reshape(&self, t: &Tensor, shape: &[usize]) -> Result<Tensor> {
        t.reshape(shape).map_err(|e| Error::backend("reshape", e))
    }

    fn swap_axes(&self, t: &Tensor, a: usize, b: usize) -> Result<Tensor> {
        t.transpose(a, b)
            .map_err(|e| Error::backend("swap_axes", e))
    }

    fn slice(&self, t: &Tensor, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        t.narrow(axis, start, len)
            .map_err(|e| Error::backend("slice", e))
    }

    fn concat(&self, parts: &[&Tensor], axis: usize) -> Result<Tensor> {
        join(parts, axis)
    }

    /// Numbers stay float32 and are rounded to the values of the format.
    fn cast(&self, t: &Tensor, dtype: DType) -> Result<Tensor> {
        let round: fn(f32) -> f32 = match dtype {
            DType::F32 => return Ok(t.clone()),
            DType::Bf16 => |x| half::bf16::from_f32(x).to_f32(),
            DType::F16 => |x| half::f16::from_f32(x).to_f32(),
        };
        in_place("cast", t, |data| {
            data.iter_mut().for_each(|x| *x = round(*x))
        })
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let kernel = |x: &[f32], y: &[f32]| kernels::add(&self.cpu, x, y);
        pairwise("add", a, b, kernel, Tensor::broadcast_add)
    }

    fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let kernel = |x: &[f32], y: &[f32]| kernels::mul(&self.cpu, x, y);
        pairwise("mul", a, b, kernel, Tensor::broadcast_mul)
    }

    fn affine(&self, a: &Tensor, factor: f32, offset: f32) -> Result<Tensor> {
        in_place("affine", a, |data| {
            data.iter_mut().for_each(|x| *x = *x * factor + offset)
        })
    }

    fn unary(&self, a: &Tensor, function: Unary) -> Result<Tensor> {
        let cpu = &self.cpu;
        in_place("unary", a, |data| match function {
            Unary::Exp => kernels::exp_in_place(cpu, data),
            Unary::Silu => kernels::silu_in_place(cpu, data),
            Unary::Sigmoid => kernels::sigmoid_in_place(cpu, data),
            Unary::Tanh => kernels::tanh_in_place(cpu, data),
            Unary::Softplus => data.iter_mut().for_each(|x| *x = kernels::softplus(*x)),
        })
    }

    fn sum_last(&self, a: &Tensor) -> Result<Tensor> {
        a.sum_keepdim(D::Minus1)
            .map_err(|e| Error::backend("sum_last", e))
    }

    fn linear(&self, weight: &CpuWeight, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        products::linear(&self.cpu, weight, x, bias)
    }

    fn embedding(&self, weight: &CpuWeight, ids: &Rc<[u32]>, dtype: DType) -> Result<Tensor> {
        weight.check_ids("embedding", ids)?;
        let mut out = vec![0.0; ids.len() * weight.inputs()];
        kernels::embedding(&self.cpu, weight.matrix(), ids, 1.0, &mut out);
        self.cast(
            &tensor("embedding", out, &[1, ids.len(), weight.inputs()])?,
            dtype,
        )
    }

    fn rms_norm(&self, x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        let width = x
            .dims()
            .last()
            .copied()
            .filter(|w| *w > 0)
            .ok_or_else(|| Error::shape("rms_norm", "a last axis", "none"))?;
        let x = dense("rms_norm", x)?;
        let numbers = view(&x);
        let weight = weight
            .map(|w| expect("rms_norm: weight", w, &[width]).map(|()| view(w)))
            .transpose()?;
        let weight = weight
            .as_ref()
            .map(|w| w.dense("rms_norm: weight"))
            .transpose()?;
        let mut out = vec![0.0; x.elem_count()];
        kernels::rms_norm(
            &self.cpu,
            numbers.dense("rms_norm")?,
            width,
            weight,
            eps,
            &mut out,
        );
        tensor("rms_norm", out, x.dims())
    }

    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<HostRope> {
        self.ropes.borrow_mut().angles(spec, first, rows)
    }

    fn norm_rope(
        &self,
        x: &Tensor,
        norm: Option<(&Tensor, f32)>,
        angles: &HostRope,
    ) -> Result<Tensor> {
        heads::norm_rope(&self.cpu, x, norm, angles)
    }

    fn attention(
        &self,
        q: &Tensor,
        kv: &HostKv,
        block: Option<Block<'_, Tensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<Tensor> {
        heads::attention(&self.cpu, q, kv, block, scale, visible)
    }

    fn kv_new(&self, shape: KvShape) -> Result<HostKv> {
        HostKv::new(shape)
    }

    fn kv_append(&self, kv: &mut HostKv, k: &Tensor, v: &Tensor) -> Result<()> {
        let KvShape { heads, head_dim } = kv.shape();
        let rows = self.dim(k, 2);
        expect("keys to append", k, &[1, heads, rows, head_dim])?;
        expect("values to append", v, &[1, heads, rows, head_dim])?;
        let (keys, values) = kv.extend(rows);
        heads::gather(&self.cpu, "kv_append", k, keys)?;
        heads::gather(&self.cpu, "kv_append", v, values)
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

    fn swiglu(&self, gate: &CpuWeight, up: &CpuWeight, x: &Tensor) -> Result<Tensor> {
        products::swiglu(&self.cpu, gate, up, x)
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        gate: &Tensor,
        weight: &Tensor,
        eps: f32,
    ) -> Result<Tensor> {
        recurrent::gated_rms_norm(&self.cpu, x, gate, weight, eps)
    }

    fn short_conv(&self, window: &Tensor, rows: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        recurrent::short_conv(&self.cpu, window, rows, kernel)
    }

    fn gated_delta(
        &self,
        state: &Tensor,
        mixed: &Tensor,
        decay: &Tensor,
        strength: &Tensor,
        params: &DeltaParams<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let op = "gated_delta";
        let &DeltaParams {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = params;
        if key_dim > MAX_KEY_DIM {
            return fallback::gated_delta(self, state, mixed, decay, strength, params);
        }
        let time = self.dim(mixed, 1);
        expect(
            "gated_delta: state",
            state,
            &[value_heads, value_dim, key_dim],
        )?;
        expect("gated_delta: rows", mixed, &[1, time, params.channels()])?;
        expect("gated_delta: decay", decay, &[1, time, value_heads])?;
        expect("gated_delta: strength", strength, &[1, time, value_heads])?;
        let inputs = [state, mixed, decay, strength].map(|t| dense(op, t));
        let [state, mixed, decay, strength] = inputs;
        let (state, mixed, decay, strength) = (state?, mixed?, decay?, strength?);
        let (a_log, dt_bias) = (view(&params.a_log), view(&params.dt_bias));
        let layer = kernels::GatedDelta {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            a_log: a_log.dense(op)?,
            dt_bias: dt_bias.dense(op)?,
        };
        let (mixed, decay, strength) = (view(&mixed), view(&decay), view(&strength));
        let rows = kernels::GatedDeltaRows {
            mixed: mixed.dense(op)?,
            a: decay.dense(op)?,
            b: strength.dense(op)?,
        };
        let (y, after) = kernels::gated_delta(&self.cpu, layer, rows, view(&state).dense(op)?);
        Ok((
            tensor(op, y, &[1, time, value_heads, value_dim])?,
            tensor(op, after, &[value_heads, value_dim, key_dim])?,
        ))
    }

    fn dynamic_conv(&self, y: &Tensor, base: &Tensor, dynamic: &Tensor) -> Result<Tensor> {
        recurrent::dynamic_conv(&self.cpu, y, base, dynamic)
    }

    fn moe(
        &self,
        x: &Tensor,
        logits: &Tensor,
        experts: &CpuExperts,
        params: &MoeParams,
    ) -> Result<Tensor> {
        products::moe(&self.cpu, x, logits, experts, params)
    }

    fn propose(&self, logits: &Tensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        let logits = dense("propose", logits)?;
        let picked = choose::propose(&self.cpu, view(&logits).dense("propose")?, vocab, rule)?;
        fallback::upload_picked(self, &picked)
    }

    fn path_select(
        &self,
        logits: &Tensor,
        hidden: &Tensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        let rank = path.predecessor.inputs();
        fallback::expect_dims(
            self,
            "path selection: hidden rows",
            hidden,
            &[1, rule.rows - 1, rank],
        )?;
        let (logits, hidden) = (dense("path_select", logits)?, dense("path_select", hidden)?);
        let (logits, hidden) = (view(&logits), view(&hidden));
        let picked = choose::path(
            &self.cpu,
            logits.dense("path_select")?,
            vocab,
            hidden.dense("path_select")?,
            path,
            rule,
        )?;
        fallback::upload_picked(self, &picked)
    }

    fn draw(
        &self,
        logits: &Tensor,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        self.count();
        let (_, vocab) = rows_of("draw", logits)?;
        let logits = dense("draw", logits)?;
        choose::draw(&self.cpu, view(&logits).dense("draw")?, vocab, draft, rule)
    }
}

#[cfg(feature = "testing")]
impl dflash_core::testing::inspect::InspectKv for CandleCpu {
    fn read_kv(&self, kv: &HostKv) -> Result<[Vec<f32>; 2]> {
        Ok([kv.keys().to_vec(), kv.values().to_vec()])
    }
}
