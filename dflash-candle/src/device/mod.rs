//! Candle on a graphics processor: candle's own operations on whatever device it has.
//!
//! Every operation queues work and returns; only reading waits. Candle has no kernel whose rounding
//! does not depend on the number of rows, so this backend is tie-tolerant. It also runs on
//! candle's processor device, which is how it is tested where there is no GPU.
//!
//! # Formats
//! Activations have the format that the backend was made with, attention's products and weights'
//! products included; norms, softmax, rope, recurrent states and choices are computed in float32.
//! A matrix stays in its file's format if that is the activations' or float32; any other is widened
//! to float32 when it is loaded, because candle multiplies tensors of one format only.

mod attention;
mod choose;
mod kv;
mod maths;
mod moe;
mod weight;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use candle_core::{D, Device, Tensor};
use dflash_core::backend::fallback;
use dflash_core::backend::{
    Backend, Block, Drafted, Exactness, Implementation, KvShape, MoeParams, Op, PathRule, RopeSpec,
    Unary, Visibility,
};
use dflash_core::checkpoint::{Experts, WeightSource};
use dflash_core::spec::{ProposalRule, RowRule, Verdict};
use dflash_core::{DType, Error, Result};

pub use self::attention::DeviceRope;
use self::attention::{Mask, Sight};
pub use self::kv::DeviceKv;
use self::maths::native;
pub use self::weight::{DeviceExperts, DeviceWeight};

/// Masks that are remembered: one per kind of layer that a pass can have, and some to spare.
const MASKS: usize = 4;

/// Candle on one of its devices; clones share the device and the read-back counter.
#[derive(Debug, Clone)]
pub struct CandleDevice {
    device: Device,
    dtype: DType,
    readbacks: Rc<Cell<u64>>,
    /// Layers of one pass see the same: their mask is made once.
    masks: Rc<RefCell<VecDeque<(Sight, Mask)>>>,
}

impl CandleDevice {
    /// A backend on a device, with activations in a format.
    pub fn new(device: Device, dtype: DType) -> Self {
        Self {
            device,
            dtype,
            readbacks: Rc::default(),
            masks: Rc::default(),
        }
    }

    /// The same device with activations in another format; the counter and what is remembered are shared.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self {
            dtype,
            ..self.clone()
        }
    }

    /// How it serves an operation, on every device and in every format.
    ///
    /// Native are those written here with candle's operations; the others are core's composites.
    pub const fn serves(op: Op) -> Implementation {
        match op {
            Op::Linear | Op::Attention | Op::NormRope | Op::Moe | Op::Propose | Op::Draw => {
                Implementation::Native
            }
            Op::Swiglu
            | Op::GatedRmsNorm
            | Op::ShortConv
            | Op::GatedDelta
            | Op::DynamicConv
            | Op::PathSelect => Implementation::Composite,
        }
    }

    /// All numbers, and one more read-back.
    fn fetch(&self, op: &'static str, t: &Tensor) -> Result<Vec<f32>> {
        self.readbacks.set(self.readbacks.get() + 1);
        maths::wide(t)
            .and_then(|t| t.flatten_all()?.to_vec1())
            .map_err(|e| Error::backend(op, e))
    }

    fn mask(&self, sight: &Sight) -> candle_core::Result<Mask> {
        if let Some((_, mask)) = self.masks.borrow().iter().find(|(s, _)| s == sight) {
            return Ok(mask.clone());
        }
        let mask = sight.mask(&self.device)?;
        let mut masks = self.masks.borrow_mut();
        masks.truncate(MASKS - 1);
        masks.push_front((*sight, mask.clone()));
        Ok(mask)
    }
}

/// An operation of candle under the name of the trait's.
fn at<T>(op: &'static str, run: impl FnOnce() -> candle_core::Result<T>) -> Result<T> {
    run().map_err(|e| Error::backend(op, e))
}

/// Three sizes, the first of which is 1.
fn rows_of(op: &'static str, t: &Tensor) -> Result<(usize, usize)> {
    match t.dims() {
        &[1, rows, width] if rows > 0 && width > 0 => Ok((rows, width)),
        other => Err(Error::shape(op, "[1, rows, width]", format!("{other:?}"))),
    }
}

impl Backend for CandleDevice {
    type Tensor = Tensor;
    type Ids = Tensor;
    type Weight = DeviceWeight;
    type Experts = DeviceExperts;
    type Kv = DeviceKv;
    type Rope = DeviceRope;

    fn name(&self) -> &'static str {
        "candle"
    }

    fn device(&self) -> &'static str {
        match self.device {
            Device::Cpu => "cpu",
            Device::Cuda(_) => "cuda",
            Device::Metal(_) => "metal",
        }
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

    fn upload(&self, data: &[f32], shape: &[usize], dtype: DType) -> Result<Tensor> {
        if data.len() != shape.iter().product::<usize>() {
            return Err(Error::shape(
                "upload",
                format!("{shape:?}"),
                format!("{} numbers", data.len()),
            ));
        }
        at("upload", || {
            Tensor::from_slice(data, shape, &self.device)?.to_dtype(native(dtype))
        })
    }

    fn weight(&self, source: WeightSource) -> Result<DeviceWeight> {
        DeviceWeight::new(source, native(self.dtype), &self.device)
    }

    fn experts(&self, source: Experts) -> Result<DeviceExperts> {
        DeviceExperts::new(source, native(self.dtype), &self.device)
    }

    fn read(&self, t: &Tensor) -> Result<Vec<f32>> {
        self.fetch("read", t)
    }

    fn read_ids(&self, ids: &Tensor) -> Result<Vec<u32>> {
        self.readbacks.set(self.readbacks.get() + 1);
        at("read_ids", || ids.to_vec1())
    }

    fn upload_ids(&self, ids: &[u32]) -> Result<Tensor> {
        at("upload_ids", || {
            Tensor::from_slice(ids, ids.len(), &self.device)
        })
    }

    fn block_ids(&self, anchor: u32, draft: Option<&Tensor>) -> Result<Tensor> {
        let anchor = self.upload_ids(&[anchor])?;
        match draft {
            Some(draft) => at("block_ids", || Tensor::cat(&[&anchor, draft], 0)),
            None => Ok(anchor),
        }
    }

    /// 0 for an axis that the tensor does not have.
    fn dim(&self, t: &Tensor, axis: usize) -> usize {
        t.dims().get(axis).copied().unwrap_or(0)
    }

    fn reshape(&self, t: &Tensor, shape: &[usize]) -> Result<Tensor> {
        at("reshape", || t.reshape(shape))
    }

    fn swap_axes(&self, t: &Tensor, a: usize, b: usize) -> Result<Tensor> {
        at("swap_axes", || t.transpose(a, b))
    }

    fn slice(&self, t: &Tensor, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        at("slice", || t.narrow(axis, start, len))
    }

    fn concat(&self, parts: &[&Tensor], axis: usize) -> Result<Tensor> {
        at("concat", || Tensor::cat(parts, axis))
    }

    fn cast(&self, t: &Tensor, dtype: DType) -> Result<Tensor> {
        at("cast", || t.to_dtype(native(dtype)))
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        at("add", || a.broadcast_add(&b.to_dtype(a.dtype())?))
    }

    fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        at("mul", || a.broadcast_mul(&b.to_dtype(a.dtype())?))
    }

    fn affine(&self, a: &Tensor, factor: f32, offset: f32) -> Result<Tensor> {
        at("affine", || a.affine(f64::from(factor), f64::from(offset)))
    }

    fn unary(&self, a: &Tensor, function: Unary) -> Result<Tensor> {
        at("unary", || maths::unary(a, function))
    }

    fn sum_last(&self, a: &Tensor) -> Result<Tensor> {
        at("sum_last", || {
            maths::wide(a)?.sum_keepdim(D::Minus1)?.to_dtype(a.dtype())
        })
    }

    fn linear(&self, weight: &DeviceWeight, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (rows, width) = rows_of("linear", x)?;
        if width != weight.inputs() {
            return Err(Error::shape(
                "linear: input",
                format!("[1, rows, {}]", weight.inputs()),
                format!("{:?}", x.dims()),
            ));
        }
        let w = weight.tensor();
        at("linear", || {
            let flat = x
                .to_dtype(w.dtype())?
                .contiguous()?
                .reshape((rows, width))?;
            let mut y = flat.matmul(&w.t()?)?;
            if let Some(bias) = bias {
                y = y.broadcast_add(&bias.to_dtype(w.dtype())?)?;
            }
            y.to_dtype(x.dtype())?.reshape((1, rows, weight.outputs()))
        })
    }

    fn embedding(&self, weight: &DeviceWeight, ids: &Tensor, dtype: DType) -> Result<Tensor> {
        at("embedding", || {
            weight
                .tensor()
                .index_select(ids, 0)?
                .to_dtype(native(dtype))?
                .unsqueeze(0)
        })
    }

    fn rms_norm(&self, x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        at("rms_norm", || {
            maths::rms_norm(x, weight, eps)?.to_dtype(x.dtype())
        })
    }

    fn rope_angles(&self, spec: &RopeSpec, first: usize, rows: usize) -> Result<DeviceRope> {
        DeviceRope::new(spec, first, rows, &self.device)
    }

    fn norm_rope(
        &self,
        x: &Tensor,
        norm: Option<(&Tensor, f32)>,
        angles: &DeviceRope,
    ) -> Result<Tensor> {
        attention::norm_rope(x, norm, angles)
    }

    fn attention(
        &self,
        q: &Tensor,
        kv: &DeviceKv,
        block: Option<Block<'_, Tensor>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<Tensor> {
        attention::attention(q, kv, block, scale, visible, |sight| self.mask(sight))
    }

    fn kv_new(&self, shape: KvShape) -> Result<DeviceKv> {
        DeviceKv::new(shape, native(self.dtype), &self.device)
    }

    fn kv_append(&self, kv: &mut DeviceKv, k: &Tensor, v: &Tensor) -> Result<()> {
        kv.append(k, v)
    }

    fn kv_keep(&self, kv: &mut DeviceKv, rows: Range<usize>) {
        kv.keep(rows);
    }

    fn kv_fork(&self, kv: &DeviceKv) -> Result<DeviceKv> {
        kv.fork()
    }

    fn kv_bytes(&self, kv: &DeviceKv) -> usize {
        kv.bytes()
    }

    fn moe(
        &self,
        x: &Tensor,
        logits: &Tensor,
        experts: &DeviceExperts,
        params: &MoeParams,
    ) -> Result<Tensor> {
        let (rows, width) = rows_of("moe", x)?;
        let (count, _, hidden) = experts.sizes();
        if width != hidden
            || logits.dims() != [1, rows, count]
            || !(1..=count).contains(&params.top_k)
        {
            return Err(Error::shape(
                "moe",
                format!(
                    "[1, rows, {hidden}], router logits [1, rows, {count}] and 1 to {count} experts per row"
                ),
                format!("{:?}, {:?} and {}", x.dims(), logits.dims(), params.top_k),
            ));
        }
        at("moe", || {
            let flat = x.to_dtype(experts.gate.dtype())?.contiguous()?.squeeze(0)?;
            moe::moe(&flat, &logits.squeeze(0)?, experts, params)?
                .to_dtype(x.dtype())?
                .unsqueeze(0)
        })
    }

    /// Without coupling on the device; with it on the host, whose noise it has to follow.
    fn propose(&self, logits: &Tensor, rule: &ProposalRule) -> Result<Drafted<Self>> {
        let vocab = fallback::slot_logits(self, logits, rule)?;
        if rule.coupling.is_some() || rule.rows < 2 || vocab > choose::MAX_VOCAB {
            return fallback::propose(self, logits, rule);
        }
        at("propose", || choose::propose(&logits.squeeze(0)?))
    }

    fn path_select(
        &self,
        logits: &Tensor,
        hidden: &Tensor,
        path: &PathRule<'_, Self>,
        rule: &ProposalRule,
    ) -> Result<Drafted<Self>> {
        // A GPU does not notice ids past a codebook's end.
        let vocab = fallback::slot_logits(self, logits, rule)?;
        for (what, book) in [
            ("path selection: predecessors", path.predecessor),
            ("path selection: successors", path.successor),
        ] {
            let found = [book.outputs(), book.inputs()];
            let rank = self.dim(hidden, 2);
            if found[0] < vocab || found[0] <= path.anchor as usize || found[1] != rank {
                let expected = format!("[at least {vocab}, {rank}], the anchor below");
                return Err(Error::shape(
                    what,
                    expected,
                    format!("{found:?}, anchor {}", path.anchor),
                ));
            }
        }
        fallback::path_select(self, logits, hidden, path, rule)
    }

    fn draw(
        &self,
        logits: &Tensor,
        draft: Option<&Drafted<Self>>,
        rule: &RowRule<'_>,
    ) -> Result<Result<Verdict, usize>> {
        let (_, vocab) = rows_of("draw", logits)?;
        if vocab > choose::MAX_VOCAB {
            return fallback::draw(self, logits, draft, rule);
        }
        let rows = at("draw", || logits.squeeze(0))?;
        choose::draw(&rows, draft, rule, |t| self.fetch("draw", t))
    }
}
