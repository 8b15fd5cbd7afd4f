//! The shared Metal kernels through MLX's own interface for custom kernels.
//!
//! Type-checked and, but for the kernels' text, never run: MLX runs custom kernels on Apple's GPUs only.

use std::cell::RefCell;
use std::rc::Rc;

use dflash_core::DType;
use dflash_core::backend::{Block, DeltaParams, Visibility};
use dflash_core::metal::{
    AffineShape, AttentionShape, DeltaShape, Family, Kernel, LONG_CACHE, Launch, Switches,
    affine_rows, attention, gated_delta, gated_delta_replay,
};
use mlx_rs::error::Exception;
use mlx_rs::fast::{
    MetalKernel, MetalKernelApplyOptions, MetalKernelOptions, MetalKernelOutput, TemplateArg,
};
use mlx_rs::{Array, Dtype};

use crate::array::{int, ints, native, size, wide};
use crate::kv::MlxKv;

/// Which kernels may be used, and those that were made. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Kernels {
    switches: Switches,
    made: Rc<RefCell<Vec<Made>>>,
}

/// A kernel under its name.
type Made = (&'static str, Rc<MetalKernel>);

impl Kernels {
    pub(crate) fn new(switches: Switches) -> Self {
        Self {
            switches,
            made: Rc::default(),
        }
    }

    /// A kernel by its name, made when it is first used; MLX compiles it for each set of constants.
    fn kernel(&self, kernel: &'static Kernel) -> Result<Rc<MetalKernel>, Exception> {
        if let Some((_, made)) = self.made.borrow().iter().find(|(n, _)| *n == kernel.name) {
            return Ok(Rc::clone(made));
        }
        let names = |list: &'static [dflash_core::metal::Argument]| -> Vec<&'static str> {
            list.iter().map(|a| a.name).collect()
        };
        let made = Rc::new(MetalKernel::new(
            kernel.name,
            &names(kernel.inputs),
            &names(kernel.outputs),
            kernel.body,
            MetalKernelOptions {
                header: kernel.header(),
                ensure_row_contiguous: true,
                atomic_outputs: false,
            },
        )?);
        self.made.borrow_mut().push((kernel.name, Rc::clone(&made)));
        Ok(made)
    }

    /// Queues a launch on its inputs, the sizes not among them.
    ///
    /// # Safety
    /// The inputs have the shapes and formats for which the launch was made.
    unsafe fn launch(&self, launch: &Launch, inputs: &[&Array]) -> Result<Vec<Array>, Exception> {
        let sizes = Array::from_slice(&launch.sizes, &[int(launch.sizes.len())]);
        let inputs: Vec<&Array> = inputs.iter().copied().chain([&sizes]).collect();
        let outputs: Vec<MetalKernelOutput> = launch
            .kernel
            .outputs
            .iter()
            .zip(&launch.outputs)
            .map(|(argument, shape)| MetalKernelOutput {
                shape: ints(shape),
                dtype: native(launch.dtype(argument).unwrap_or(DType::F32)),
            })
            .collect();
        let types = launch.kernel.types.iter().zip(&launch.types);
        let types = types.map(|(name, dtype)| (*name, TemplateArg::Dtype(native(*dtype))));
        let constants = launch.kernel.constants.iter().zip(&launch.constants);
        let constants = constants.map(|(name, value)| (*name, TemplateArg::Int(*value)));
        let arguments = types.chain(constants).map(|(name, a)| (name.into(), a));
        let options = MetalKernelApplyOptions {
            template_args: arguments.collect(),
            init_value: None,
            verbose: false,
        };
        let three = |[x, y, z]: [usize; 3]| (int(x), int(y), int(z));
        let kernel = self.kernel(launch.kernel)?;
        // SAFETY: a launch's kernel stays inside buffers of its sizes, which the caller vouches for, and writes
        // every number of its outputs once; both are tested on the host over guarded memory.
        unsafe {
            kernel.apply(
                &inputs,
                &outputs,
                three(launch.grid),
                three(launch.group),
                options,
            )
        }
    }

    /// Sizes of a call of the gated delta rule, if a kernel takes it. All shapes were checked before.
    fn delta(
        &self,
        mixed: &Array,
        others: [&Array; 2],
        params: &DeltaParams<Array>,
    ) -> Option<(DeltaShape, DType)> {
        let dtype = format(mixed)?;
        let same = others.into_iter().all(|t| t.dtype() == mixed.dtype());
        let shape = DeltaShape {
            key_heads: params.key_heads,
            value_heads: params.value_heads,
            key_dim: params.key_dim,
            value_dim: params.value_dim,
            rows: size(mixed, 1),
        };
        (same && self.switches.is_on(Family::GatedDelta)).then_some((shape, dtype))
    }

    /// The gated delta rule, if a kernel takes it. All shapes were checked before.
    pub(crate) fn gated_delta(
        &self,
        state: &Array,
        mixed: &Array,
        decay: &Array,
        strength: &Array,
        params: &DeltaParams<Array>,
    ) -> Result<Option<(Array, Array)>, Exception> {
        let Some(launch) = self
            .delta(mixed, [decay, strength], params)
            .and_then(|(shape, dtype)| gated_delta(&shape, dtype))
        else {
            return Ok(None);
        };
        let [state, a_log, bias] = [wide(state)?, wide(&params.a_log)?, wide(&params.dt_bias)?];
        let inputs = [&state, mixed, decay, strength, &a_log, &bias];
        // SAFETY: shapes were checked by the caller, formats in `delta`; the others are float32.
        let results = unsafe { self.launch(&launch, &inputs)? };
        Ok(<[Array; 2]>::try_from(results).ok().map(|[y, s]| (y, s)))
    }

    /// The state of [`Self::gated_delta`] alone.
    pub(crate) fn gated_delta_state(
        &self,
        state: &Array,
        mixed: &Array,
        decay: &Array,
        strength: &Array,
        params: &DeltaParams<Array>,
    ) -> Result<Option<Array>, Exception> {
        let Some(launch) = self
            .delta(mixed, [decay, strength], params)
            .and_then(|(shape, dtype)| gated_delta_replay(&shape, dtype))
        else {
            return Ok(None);
        };
        let [state, a_log, bias] = [wide(state)?, wide(&params.a_log)?, wide(&params.dt_bias)?];
        let inputs = [&state, mixed, decay, strength, &a_log, &bias];
        // SAFETY: as for the block.
        let results = unsafe { self.launch(&launch, &inputs)? };
        Ok(results.into_iter().next())
    }

    /// A packed product of 2 to 16 rows `[1, rows, inputs]`, if a kernel takes it; `packed` holds codes,
    /// scales and biases of `shape`'s matrix. One row is left to MLX, whose own kernel is made for it.
    pub(crate) fn affine_rows(
        &self,
        shape: &AffineShape,
        x: &Array,
        packed: [&Array; 3],
    ) -> Result<Option<Array>, Exception> {
        let [codes, scales, biases] = packed;
        let formats = format(x).zip(format(scales));
        let usable = self.switches.is_on(Family::AffineRows)
            && shape.rows > 1
            && codes.dtype() == Dtype::Uint32
            && biases.dtype() == scales.dtype()
            && size(x, 1) == shape.rows
            && size(x, 2) == shape.inputs;
        let launch = formats
            .filter(|_| usable)
            .and_then(|(dtype, factors)| affine_rows(shape, dtype, factors));
        let Some(launch) = launch else {
            return Ok(None);
        };
        // SAFETY: rows and formats were checked above; the matrix's parts have the sizes with which it was loaded.
        let results = unsafe { self.launch(&launch, &[x, codes, scales, biases])? };
        Ok(results.into_iter().next())
    }

    /// Attention of 2 to 16 rows over a long cache, if kernels take it. All shapes were checked before.
    pub(crate) fn attention(
        &self,
        q: &Array,
        kv: &MlxKv,
        block: Option<&Block<'_, Array>>,
        scale: f32,
        visible: &Visibility,
    ) -> Result<Option<Array>, Exception> {
        let Some((keys, values, front, capacity)) = kv.memory() else {
            return Ok(None);
        };
        let parts = block.map_or([keys, values], |b| [b.k, b.v]);
        let same = [keys, values]
            .iter()
            .chain(&parts)
            .all(|t| t.dtype() == q.dtype());
        let rows = size(q, 2);
        if !self.switches.is_on(Family::Attention) || !same || rows < 2 || kv.rows() < LONG_CACHE {
            return Ok(None);
        }
        let shape = AttentionShape {
            kv: kv.shape(),
            query_heads: size(q, 1),
            rows,
            keys: kv.rows(),
            front,
            capacity,
            scale,
            visible: *visible,
            block: block.map(|b| b.rule),
        };
        let Some([scores, join]) = format(q).and_then(|dtype| attention(&shape, dtype)) else {
            return Ok(None);
        };
        // SAFETY: shapes were checked by the caller, formats above; without a block its arguments are not read.
        let results = unsafe { self.launch(&scores, &[q, keys, values, parts[0], parts[1]])? };
        let results: Vec<&Array> = results.iter().collect();
        // SAFETY: these are the outputs for which the second launch was made.
        let results = unsafe { self.launch(&join, &results)? };
        Ok(results.into_iter().next())
    }
}

/// The format of an array of floats.
fn format(t: &Array) -> Option<DType> {
    [DType::F32, DType::Bf16, DType::F16]
        .into_iter()
        .find(|d| native(*d) == t.dtype())
}
