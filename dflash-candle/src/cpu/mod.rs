//! Candle on the processor: Candle's tensors, this crate's kernels.
//!
//! Candle's own products widen both operands at every call and their rounding depends on the number
//! of rows. The kernels here widen in registers and are row-invariant, so this backend is exact.
//! Candle carries shapes, views and memory.

mod choose;
mod view;
mod weight;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use candle_core::{D, Tensor};
use dflash_core::backend::fallback;
use dflash_core::backend::host::{HostKv, HostRope};
use dflash_core::backend::{
    Backend, Block, BlockRule, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams,
    Op, PathRule, RopeSpec, Unary, Visibility,
};
use dflash_core::checkpoint::{Experts, WeightSource};
use dflash_core::spec::{ProposalRule, RowRule, Verdict};
use dflash_core::{DType, Error, Result};

use self::view::{dense, expect, rows_of, tensor, view};
pub use self::weight::{CpuExperts, CpuWeight};
use crate::kernels::cpu as kernels;
use crate::kernels::cpu::{Activation, Cpu, Heads, KeysValues, MAX_KEY_DIM, Visible};

/// Candle on the processor; clones share threads and the read-back counter.
#[derive(Debug, Clone)]
pub struct CandleCpu {
    cpu: Rc<Cpu>,
    readbacks: Rc<Cell<u64>>,
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
        }
    }

    fn count(&self) {
        self.readbacks.set(self.readbacks.get() + 1);
    }

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
    fn gather(&self, op: &'static str, t: &Tensor, out: &mut [f32]) -> Result<()> {
        let (t, layout) = Self::heads(op, t)?;
        let numbers = view(&t);
        kernels::norm_rope(&self.cpu, numbers.strided(op)?, layout, None, None, out);
        Ok(())
    }
}

/// Applies a function to numbers in place.
fn in_place(op: &'static str, t: &Tensor, function: impl FnOnce(&mut [f32])) -> Result<Tensor> {
    let t = dense(op, t)?;
    let mut data = view(&t).dense(op)?.to_vec();
    function(&mut data);
    tensor(op, data, t.dims())
}

/// A function of two tensors of one shape, or Candle's broadcasting one.
fn pairwise(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    function: impl Fn(f32, f32) -> f32,
    broadcast: impl FnOnce(&Tensor, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    if a.dims() != b.dims() {
        return broadcast(a, b).map_err(|e| Error::backend(op, e));
    }
    let (a, b) = (dense(op, a)?, dense(op, b)?);
    let (x, y) = (view(&a), view(&b));
    let data = x
        .dense(op)?
        .iter()
        .zip(y.dense(op)?)
        .map(|(x, y)| function(*x, *y))
        .collect();
    tensor(op, data, a.dims())
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
        Tensor::cat(parts, axis).map_err(|e| Error::backend("concat", e))
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
        pairwise("add", a, b, |x, y| x + y, Tensor::broadcast_add)
    }

    fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        pairwise("mul", a, b, |x, y| x * y, Tensor::broadcast_mul)
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
        let (rows, width) = rows_of("linear", x)?;
        if width != weight.inputs() {
            return Err(Error::shape(
                "linear: input",
                format!("[1, rows, {}]", weight.inputs()),
                format!("{:?}", x.dims()),
            ));
        }
        let x = dense("linear", x)?;
        let x = view(&x);
        let bias = bias
            .map(|b| expect("linear: bias", b, &[weight.outputs()]).map(|()| view(b)))
            .transpose()?;
        let bias = bias.as_ref().map(|b| b.dense("linear: bias")).transpose()?;
        let mut out = vec![0.0; rows * weight.outputs()];
        kernels::linear(
            &self.cpu,
            x.dense("linear")?,
            rows,
            weight.matrix(),
            bias,
            &mut out,
        );
        tensor("linear", out, &[1, rows, weight.outputs()])
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
        HostRope::new(spec, first, rows)
    }

    fn norm_rope(
        &self,
        x: &Tensor,
        norm: Option<(&Tensor, f32)>,
        angles: &HostRope,
    ) -> Result<Tensor> {
        let op = "norm_rope";
        let (x, layout) = Self::heads(op, x)?;
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
            &self.cpu,
            numbers.strided(op)?,
            layout,
            norm,
            Some(rotation),
            &mut out,
        );
        Self::heads_tensor(op, out, layout)
    }

    fn attention(
        &self,
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
        let (q, queries) = Self::heads(op, q)?;
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
                let in_time = |t: &Tensor| dense(op, &self.swap_axes(t, 1, 2)?);
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
            &self.cpu,
            shape,
            view(&q).strided(op)?,
            cache,
            beside,
            &seen,
            &mut out,
        );
        Self::heads_tensor(op, out, queries)
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
        self.gather("kv_append", k, keys)?;
        self.gather("kv_append", v, values)
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
        let (rows, width) = rows_of("swiglu", x)?;
        let sizes = [gate.inputs(), up.inputs(), gate.outputs()];
        if sizes != [width, width, up.outputs()] {
            return Err(Error::shape(
                "swiglu: input",
                format!("[1, rows, {}]", gate.inputs()),
                format!("{:?}", x.dims()),
            ));
        }
        let x = dense("swiglu", x)?;
        let mut out = vec![0.0; rows * gate.outputs()];
        kernels::glu(
            &self.cpu,
            view(&x).dense("swiglu")?,
            rows,
            gate.matrix(),
            up.matrix(),
            Activation::Silu,
            &mut out,
        );
        tensor("swiglu", out, &[1, rows, gate.outputs()])
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        gate: &Tensor,
        weight: &Tensor,
        eps: f32,
    ) -> Result<Tensor> {
        let op = "gated_rms_norm";
        let width = self.dim(weight, 0);
        expect("gated_rms_norm: gate", gate, x.dims())?;
        if width == 0 || x.dims().last() != Some(&width) {
            return Err(Error::shape(
                op,
                format!("a last axis of {width}"),
                format!("{:?}", x.dims()),
            ));
        }
        let (x, gate) = (dense(op, x)?, dense(op, gate)?);
        let mut out = vec![0.0; x.elem_count()];
        let (values, gates, weight) = (view(&x), view(&gate), view(weight));
        kernels::gated_rms_norm(
            &self.cpu,
            values.dense(op)?,
            gates.dense(op)?,
            width,
            weight.dense(op)?,
            eps,
            &mut out,
        );
        tensor(op, out, x.dims())
    }

    fn short_conv(&self, window: &Tensor, rows: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let op = "short_conv";
        let (time, channels) = rows_of(op, rows)?;
        let taps = self.dim(kernel, 0);
        expect("short_conv: kernel", kernel, &[taps, channels])?;
        expect(
            "short_conv: window",
            window,
            &[1, taps.saturating_sub(1), channels],
        )?;
        let (window, rows, kernel) = (dense(op, window)?, dense(op, rows)?, dense(op, kernel)?);
        let (w, r, k) = (view(&window), view(&rows), view(&kernel));
        let mut out = vec![0.0; time * channels];
        kernels::short_conv(
            &self.cpu,
            w.dense(op)?,
            r.dense(op)?,
            k.dense(op)?,
            channels,
            &mut out,
        );
        tensor(op, out, &[1, time, channels])
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
        let (mut y, mut after) = (
            vec![0.0; time * value_heads * value_dim],
            vec![0.0; layer.state_len()],
        );
        kernels::gated_delta(
            &self.cpu,
            layer,
            rows,
            view(&state).dense(op)?,
            &mut y,
            &mut after,
        );
        Ok((
            tensor(op, y, &[1, time, value_heads, value_dim])?,
            tensor(op, after, &[value_heads, value_dim, key_dim])?,
        ))
    }

    fn dynamic_conv(&self, y: &Tensor, base: &Tensor, dynamic: &Tensor) -> Result<Tensor> {
        let op = "dynamic_conv";
        let (time, channels) = rows_of(op, y)?;
        let (taps, groups) = (self.dim(base, 0), self.dim(dynamic, 3));
        expect("dynamic_conv: base", base, &[taps, channels])?;
        expect("dynamic_conv: kernels", dynamic, &[1, time, taps, groups])?;
        if groups == 0 || channels % groups != 0 {
            return Err(Error::shape(
                "dynamic_conv: groups",
                format!("a divisor of {channels}"),
                groups,
            ));
        }
        let (y, base, dynamic) = (dense(op, y)?, dense(op, base)?, dense(op, dynamic)?);
        let (base, dynamic) = (view(&base), view(&dynamic));
        let kernel = kernels::DynamicKernel {
            taps,
            base: base.dense(op)?,
            dynamic: dynamic.dense(op)?,
            groups,
            stride: taps * groups,
        };
        let mut out = vec![0.0; time * channels];
        kernels::dynamic_conv(&self.cpu, view(&y).dense(op)?, channels, kernel, &mut out);
        tensor(op, out, &[1, time, channels])
    }

    fn moe(
        &self,
        x: &Tensor,
        logits: &Tensor,
        experts: &CpuExperts,
        params: &MoeParams,
    ) -> Result<Tensor> {
        let op = "moe";
        let (rows, hidden) = rows_of(op, x)?;
        expect("moe: router logits", logits, &[1, rows, experts.count()])?;
        if hidden != experts.hidden() || params.top_k == 0 || params.top_k > experts.count() {
            let expected = format!(
                "[1, rows, {}] and 1 to {} experts per row",
                experts.hidden(),
                experts.count()
            );
            return Err(Error::shape(
                op,
                expected,
                format!("{:?} and {}", x.dims(), params.top_k),
            ));
        }
        let (x, logits) = (dense(op, x)?, dense(op, logits)?);
        let (ids, weights) =
            choose::routes(&self.cpu, view(&logits).dense(op)?, experts.count(), params);
        let routes = kernels::Routes {
            per_row: params.top_k,
            ids: &ids,
            weights: &weights,
        };
        let mut out = vec![0.0; rows * hidden];
        kernels::moe(
            &self.cpu,
            view(&x).dense(op)?,
            rows,
            routes,
            &experts.matrices(),
            Activation::Silu,
            &mut out,
        );
        tensor(op, out, &[1, rows, hidden])
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
