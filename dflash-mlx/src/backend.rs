//! The operations of models and drafts on MLX.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use dflash_core::backend::host::RopeCache;
use dflash_core::backend::{
    Backend, Block, DeltaParams, Drafted, Exactness, Implementation, KvShape, MoeParams, Op,
    PathRule, RopeSpec, Unary, Visibility, fallback,
};
use dflash_core::checkpoint::{Experts, WeightSource};
use dflash_core::metal::Switches;
use dflash_core::spec::{ProposalRule, RowRule, Verdict};
use dflash_core::{DType, Error, Result};
use mlx_rs::ops::{concatenate, sum_axis, tanh};
use mlx_rs::{Array, fast, transforms};

use crate::array::{at, cast, int, ints, native, part, sigmoid, silu, size, sizes, wide};
use crate::attention::{self, Mask, Sight};
use crate::delta::{self, Offsets};
use crate::in_flight::InFlight;
use crate::kernels::metal::Kernels;
use crate::kv::MlxKv;
use crate::rope::{MlxRope, norm_rope};
use crate::weight::{MlxExperts, MlxWeight, Place};
use crate::{choose, conv, moe};

/// Masks that are remembered: one per kind of layer that a pass can have, and some to spare.
const MASKS: usize = 4;
/// Read-backs after which memory that MLX keeps for reuse is given back: one in so many rounds costs
/// nothing that can be measured, and keeps what long prompts needed from staying.
const CLEAR_EVERY: u64 = 32;

/// MLX on one of its devices; clones share counters and what is remembered.
///
/// Operations queue work, [`Backend::begin`] lets the device start on it, and only reading and
/// [`Backend::evaluate`] wait: a round waits once, in [`Backend::draw`].
#[derive(Debug, Clone)]
pub struct Mlx {
    dtype: DType,
    place: Place,
    readbacks: Rc<Cell<u64>>,
    ropes: Rc<RefCell<RopeCache>>,
    masks: Rc<RefCell<VecDeque<(Sight, Mask)>>>,
    delta: Rc<RefCell<Vec<Offsets>>>,
    kernels: Kernels,
    _in_flight: InFlight,
}

impl Mlx {
    /// A backend with activations in a format. `place` says what MLX's default device is.
    pub fn new(place: Place, dtype: DType) -> Self {
        Self {
            dtype,
            place,
            readbacks: Rc::default(),
            ropes: Rc::default(),
            masks: Rc::default(),
            delta: Rc::default(),
            kernels: Kernels::new(Switches::NONE),
            _in_flight: InFlight::new(),
        }
    }

    /// The same backend with certain kernels of our own, for a GPU.
    #[must_use]
    pub fn with_kernels(&self, switches: Switches) -> Self {
        Self {
            kernels: Kernels::new(switches),
            ..self.clone()
        }
    }

    /// The same device with activations in another format; counters and what is remembered are shared.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self {
            dtype,
            ..self.clone()
        }
    }

    /// How it serves an operation.
    pub const fn serves(op: Op) -> Implementation {
        match op {
            Op::Swiglu | Op::GatedRmsNorm => Implementation::Composite,
            _ => Implementation::Native,
        }
    }

    fn count(&self) -> Result<()> {
        let count = self.readbacks.get() + 1;
        self.readbacks.set(count);
        if count.is_multiple_of(CLEAR_EVERY) {
            at("clear_cache", mlx_rs::memory::clear_cache())?;
        }
        Ok(())
    }

    /// All numbers, and one more read-back.
    fn fetch(&self, op: &'static str, t: &Array) -> Result<Vec<f32>> {
        let flat = at(op, wide(t).and_then(|t| t.reshape(&[-1])?.contiguous()))?;
        at(op, flat.eval())?;
        let numbers = flat.try_as_slice::<f32>().map(<[f32]>::to_vec);
        self.count()?;
        numbers.map_err(|e| Error::backend(op, e))
    }

    fn mask(&self, sight: &Sight) -> Mask {
        if let Some((_, mask)) = self.masks.borrow().iter().find(|(s, _)| s == sight) {
            return mask.clone();
        }
        let mask = sight.mask();
        let mut masks = self.masks.borrow_mut();
        masks.truncate(MASKS - 1);
        masks.push_front((*sight, mask.clone()));
        mask
    }
}

/// Three sizes, the first of which is 1.
fn rows_of(op: &'static str, t: &Array) -> Result<(usize, usize)> {
    match sizes(t)[..] {
        [1, rows, width] if rows > 0 && width > 0 => Ok((rows, width)),
        _ => Err(Error::shape(
            op,
            "[1, rows, width]",
            format!("{:?}", t.shape()),
        )),
    }
}

impl Backend for Mlx {
    type Tensor = Array;
    type Ids = Array;
    type Weight = MlxWeight;
    type Experts = MlxExperts;
    type Kv = MlxKv;
    type Rope = MlxRope;

    fn name(&self) -> &'static str {
        "mlx"
    }

    fn device(&self) -> &'static str {
        self.place.name()
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn exactness(&self) -> Exactness {
        Exactness::TieTolerant
    }

    fn implementation(&self, op: Op) -> Implementation {
        Self::serves(op)
    }

    fn readbacks(&self) -> u64 {
        self.readbacks.get()
    }

    fn upload(&self, data: &[f32], shape: &[usize], dtype: DType) -> Result<Array> {
        if data.len() != shape.iter().product::<usize>() {
            let found = format!("{} numbers", data.len());
            return Err(Error::shape("upload", format!("{shape:?}"), found));
        }
        at(
            "upload",
            cast(&Array::from_slice(data, &ints(shape)), native(dtype)),
        )
    }

    fn weight(&self, source: WeightSource) -> Result<MlxWeight> {
        MlxWeight::new(source, self.dtype, self.place)
    }

    fn experts(&self, source: Experts) -> Result<MlxExperts> {
        MlxExperts::new(source, self.dtype, self.place)
    }

    fn read(&self, t: &Array) -> Result<Vec<f32>> {
        self.fetch("read", t)
    }

    fn read_ids(&self, ids: &Array) -> Result<Vec<u32>> {
        let ids = at("read_ids", ids.contiguous())?;
        at("read_ids", ids.eval())?;
        let numbers = ids.try_as_slice::<u32>().map(<[u32]>::to_vec);
        self.count()?;
        numbers.map_err(|e| Error::backend("read_ids", e))
    }

    fn evaluate(&self, tensors: &[&Array]) -> Result<()> {
        at("evaluate", transforms::eval(tensors.iter().copied()))
    }

    fn begin(&self, t: &Array) -> Result<()> {
        at("begin", transforms::async_eval([t]))
    }

    fn upload_ids(&self, ids: &[u32]) -> Result<Array> {
        Ok(Array::from_slice(ids, &[int(ids.len())]))
    }

    fn block_ids(&self, anchor: u32, draft: Option<&Array>) -> Result<Array> {
        let anchor = self.upload_ids(&[anchor])?;
        match draft {
            Some(draft) => at("block_ids", concatenate(&[&anchor, draft], 0)),
            None => Ok(anchor),
        }
    }

    fn dim(&self, t: &Array, axis: usize) -> usize {
        size(t, axis)
    }

    fn reshape(&self, t: &Array, shape: &[usize]) -> Result<Array> {
        at("reshape", t.reshape(&ints(shape)))
    }

    fn swap_axes(&self, t: &Array, a: usize, b: usize) -> Result<Array> {
        at("swap_axes", t.swap_axes(int(a), int(b)))
    }

    fn slice(&self, t: &Array, axis: usize, start: usize, len: usize) -> Result<Array> {
        if axis >= t.ndim() || start + len > size(t, axis) {
            let found = format!("{start}..{} of axis {axis} of {:?}", start + len, t.shape());
            return Err(Error::shape("slice", "entries that exist", found));
        }
        at("slice", part(t, axis, start, len))
    }

    fn concat(&self, parts: &[&Array], axis: usize) -> Result<Array> {
        at("concat", concatenate(parts, int(axis)))
    }

    fn cast(&self, t: &Array, dtype: DType) -> Result<Array> {
        at("cast", cast(t, native(dtype)))
    }

    fn add(&self, a: &Array, b: &Array) -> Result<Array> {
        at("add", cast(b, a.dtype()).and_then(|b| a.add(b)))
    }

    fn mul(&self, a: &Array, b: &Array) -> Result<Array> {
        at("mul", cast(b, a.dtype()).and_then(|b| a.multiply(b)))
    }

    fn affine(&self, a: &Array, factor: f32, offset: f32) -> Result<Array> {
        let scalar = |x| cast(&Array::from_f32(x), a.dtype());
        let run = || match offset {
            0.0 => a.multiply(scalar(factor)?),
            _ => a.multiply(scalar(factor)?)?.add(scalar(offset)?),
        };
        at("affine", run())
    }

    fn unary(&self, a: &Array, function: Unary) -> Result<Array> {
        let run = || match function {
            Unary::Exp => a.exp(),
            Unary::Silu => silu(a, self.place),
            Unary::Sigmoid => sigmoid(a, self.place),
            Unary::Softplus => mlx_rs::ops::logaddexp(a, cast(&Array::from_f32(0.0), a.dtype())?),
            Unary::Tanh => tanh(a),
        };
        at("unary", run())
    }

    fn sum_last(&self, a: &Array) -> Result<Array> {
        let run = || cast(&sum_axis(wide(a)?, -1, true)?, a.dtype());
        at("sum_last", run())
    }

    fn linear(&self, weight: &MlxWeight, x: &Array, bias: Option<&Array>) -> Result<Array> {
        let (_, width) = rows_of("linear", x)?;
        if width != weight.inputs() {
            let expected = format!("[1, rows, {}]", weight.inputs());
            return Err(Error::shape(
                "linear: input",
                expected,
                format!("{:?}", x.shape()),
            ));
        }
        let run = || {
            let y = match weight.product_by(&self.kernels, x)? {
                Some(y) => y,
                None => weight.product(x)?,
            };
            match bias {
                Some(bias) => y.add(cast(bias, x.dtype())?),
                None => Ok(y),
            }
        };
        at("linear", run())
    }

    fn embedding(&self, weight: &MlxWeight, ids: &Array, dtype: DType) -> Result<Array> {
        let shape = [1, int(size(ids, 0)), int(weight.inputs())];
        let run = || cast(&weight.rows(ids)?, native(dtype))?.reshape(&shape);
        at("embedding", run())
    }

    fn rms_norm(&self, x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
        // A weight in the input's format keeps the result in it; sums are float32 inside.
        let run = || {
            let weight = weight.map(|w| cast(w, x.dtype())).transpose()?;
            fast::rms_norm(x, weight.as_ref(), eps)
        };
        at("rms_norm", run())
    }

    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<MlxRope> {
        if self.place == Place::Metal
            && self.dtype != DType::F32
            && let Some(fused) = MlxRope::fused(spec, first, rows)
        {
            return Ok(fused);
        }
        let host = self.ropes.borrow_mut().angles(spec, first, rows)?;
        Ok(MlxRope::new(&host))
    }

    fn norm_rope(&self, x: &Array, norm: Option<(&Array, f32)>, angles: &MlxRope) -> Result<Array> {
        norm_rope(x, norm, angles)
    }

    fn attention(
        &self,
        q: &Array,
        kv: &MlxKv,
        block: Option<Block<'_, Array>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<Array> {
        let mask = |sight: &Sight| self.mask(sight);
        attention::attention(q, kv, block, scale, visible, &self.kernels, mask)
    }

    fn kv_new(&self, shape: KvShape) -> Result<MlxKv> {
        MlxKv::new(shape, native(self.dtype))
    }

    fn kv_append(&self, kv: &mut MlxKv, k: &Array, v: &Array) -> Result<()> {
        kv.append(k, v)
    }

    fn kv_keep(&self, kv: &mut MlxKv, rows: Range<usize>) {
        kv.keep(rows);
    }

    fn kv_fork(&self, kv: &MlxKv) -> Result<MlxKv> {
        Ok(kv.fork())
    }

    fn kv_bytes(&self, kv: &MlxKv) -> usize {
        kv.bytes()
    }

    fn short_conv(&self, window: &Array, rows: &Array, kernel: &Array) -> Result<Array> {
        conv::short_conv(window, rows, kernel, self.place)
    }

    fn gated_delta(
        &self,
        state: &Array,
        mixed: &Array,
        decay: &Array,
        strength: &Array,
        params: &DeltaParams<Array>,
    ) -> Result<(Array, Array)> {
        delta::check(state, mixed, decay, strength, params)?;
        let own = self
            .kernels
            .gated_delta(state, mixed, decay, strength, params);
        if let Some(both) = at("gated_delta", own)? {
            return Ok(both);
        }
        let mut offsets = self.delta.borrow_mut();
        delta::gated_delta(state, mixed, decay, strength, params, &mut offsets)
    }

    fn gated_delta_state(
        &self,
        state: &Array,
        mixed: &Array,
        decay: &Array,
        strength: &Array,
        params: &DeltaParams<Array>,
    ) -> Result<Array> {
        delta::check(state, mixed, decay, strength, params)?;
        let own = self
            .kernels
            .gated_delta_state(state, mixed, decay, strength, params);
        if let Some(state) = at("gated_delta", own)? {
            return Ok(state);
        }
        let mut offsets = self.delta.borrow_mut();
        delta::gated_delta(state, mixed, decay, strength, params, &mut offsets).map(|(_, s)| s)
    }

    fn dynamic_conv(&self, y: &Array, base: &Array, dynamic: &Array) -> Result<Array> {
        conv::dynamic_conv(y, base, dynamic)
    }

    fn moe(
        &self,
        x: &Array,
        logits: &Array,
        experts: &MlxExperts,
        params: &MoeParams,
    ) -> Result<Array> {
        let (rows, width) = rows_of("moe", x)?;
        let (count, hidden) = (experts.count, experts.gate.inputs());
        if width != hidden
            || sizes(logits) != [1, rows, count]
            || !(1..=count).contains(&params.top_k)
        {
            let expected = format!(
                "[1, rows, {hidden}], router logits [1, rows, {count}] and 1 to {count} experts per row"
            );
            let found = format!("{:?}, {:?} and {}", x.shape(), logits.shape(), params.top_k);
            return Err(Error::shape("moe", expected, found));
        }
        at("moe", moe::moe(x, logits, experts, params, self.place))
    }

    /// Without coupling on the device; with it on the host, whose noise it has to follow.
    fn propose(&self, logits: &Array, rule: &ProposalRule) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        if rule.coupling.is_some() || rule.rows < 2 || vocab > choose::MAX_VOCAB {
            return fallback::propose(self, logits, rule);
        }
        let run = || choose::propose(&logits.reshape(&[int(rule.rows - 1), int(vocab)])?);
        at("propose", run())
    }

    fn path_select(
        &self,
        logits: &Array,
        hidden: &Array,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        let rank = size(hidden, 2);
        for (what, book) in [
            ("path selection: predecessors", path.predecessor),
            ("path selection: successors", path.successor),
        ] {
            // Rows past the end would be read as if they were there.
            let found = [book.outputs(), book.inputs()];
            if found[0] < vocab || found[0] <= path.anchor as usize || found[1] != rank {
                let expected = format!("[at least {vocab}, {rank}], the anchor below");
                let found = format!("{found:?}, anchor {}", path.anchor);
                return Err(Error::shape(what, expected, found));
            }
        }
        let slots = rule.rows.saturating_sub(1);
        fallback::expect_dims(
            self,
            "path selection: hidden rows",
            hidden,
            &[1, slots, rank],
        )?;
        if rule.coupling.is_some() || slots == 0 || path.top_k == 0 || vocab > choose::MAX_VOCAB {
            return fallback::path_select(self, logits, hidden, path, rule);
        }
        let run = || {
            let logits = logits.reshape(&[int(slots), int(vocab)])?;
            choose::path(&logits, &hidden.reshape(&[int(slots), int(rank)])?, path)
        };
        at("path_select", run())
    }

    fn draw(
        &self,
        logits: &Array,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        let (rows, vocab) = rows_of("draw", logits)?;
        if vocab > choose::MAX_VOCAB {
            return fallback::draw(self, logits, draft, rule);
        }
        let rows = at("draw", logits.reshape(&[int(rows), int(vocab)]))?;
        choose::draw(&rows, draft, rule, |t| self.fetch("draw", t))
    }
}

#[cfg(feature = "testing")]
impl dflash_core::testing::inspect::InspectKv for Mlx {
    fn read_kv(&self, kv: &MlxKv) -> Result<[Vec<f32>; 2]> {
        let Some([k, v]) = at("read_kv", kv.view(0..kv.rows()))? else {
            return Ok([Vec::new(), Vec::new()]);
        };
        let rows = |t: &Array| -> Result<Vec<f32>> {
            let t = at("read_kv", t.swap_axes(1, 2))?;
            self.fetch("read_kv", &t)
        };
        Ok([rows(&k)?, rows(&v)?])
    }
}
