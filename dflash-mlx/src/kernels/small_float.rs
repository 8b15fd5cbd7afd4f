//! Products with small floats. The safe interface of `mlx-rs` has the affine mode only, so these are
//! MLX's own functions, called with the name of the mode.

use std::ffi::CStr;

use dflash_core::checkpoint::SmallFloat;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use mlx_sys::{mlx_array, mlx_optional_dtype, mlx_optional_int};

use crate::array::int;

/// Small floats of one matrix, or of several stacked in front. Whoever makes it evaluates its arrays
/// before a product: `mlx-rs` then has told MLX what to do with errors, which else end the process.
#[derive(Debug)]
pub(crate) struct SmallFloats {
    /// U32 words `[.., outputs, inputs * bits / 32]`.
    pub(crate) codes: Array,
    /// Bytes `[.., outputs, inputs / group]`.
    pub(crate) scales: Array,
    /// What they stand for.
    pub(crate) format: SmallFloat,
}

impl SmallFloats {
    /// `x · wᵀ`, in the format of `x`.
    pub(crate) fn product(&self, x: &Array) -> Result<Array, Exception> {
        let (none, stream) = (absent(), Stream::thread_local_or_default());
        let call = |result| {
            // SAFETY: the handles belong to arrays and a stream that live until the call returns; the mode is a C string.
            unsafe {
                mlx_sys::mlx_quantized_matmul(
                    result,
                    x.as_ptr(),
                    self.codes.as_ptr(),
                    self.scales.as_ptr(),
                    none.as_ptr(),
                    true,
                    some(self.format.group()),
                    some(self.format.bits()),
                    self.mode().as_ptr(),
                    stream.as_ptr(),
                )
            }
        };
        self.made("quantized_matmul", x, call)
    }

    /// `x · w[ids]ᵀ` for stacked matrices: each `[1, inputs]` of `x` with the matrices that `ids` names for it.
    pub(crate) fn product_of(&self, x: &Array, ids: &Array) -> Result<Array, Exception> {
        let (none, stream) = (absent(), Stream::thread_local_or_default());
        let call = |result| {
            // SAFETY: as in `product`.
            unsafe {
                mlx_sys::mlx_gather_qmm(
                    result,
                    x.as_ptr(),
                    self.codes.as_ptr(),
                    self.scales.as_ptr(),
                    none.as_ptr(),
                    none.as_ptr(),
                    ids.as_ptr(),
                    true,
                    some(self.format.group()),
                    some(self.format.bits()),
                    self.mode().as_ptr(),
                    false,
                    stream.as_ptr(),
                )
            }
        };
        self.made("gather_qmm", x, call)
    }

    /// Rows of the matrix in float32, `[n, inputs]`.
    pub(crate) fn rows(&self, ids: &Array) -> Result<Array, Exception> {
        let (codes, scales) = (
            self.codes.take_axis(ids, 0)?,
            self.scales.take_axis(ids, 0)?,
        );
        let (none, stream) = (absent(), Stream::thread_local_or_default());
        let float32 = mlx_optional_dtype {
            value: mlx_sys::mlx_dtype__MLX_FLOAT32,
            has_value: true,
        };
        let call = |result| {
            // SAFETY: as in `product`.
            unsafe {
                mlx_sys::mlx_dequantize(
                    result,
                    codes.as_ptr(),
                    scales.as_ptr(),
                    none.as_ptr(),
                    some(self.format.group()),
                    some(self.format.bits()),
                    self.mode().as_ptr(),
                    none.as_ptr(),
                    float32,
                    stream.as_ptr(),
                )
            }
        };
        self.made("dequantize", ids, call)
    }

    fn mode(&self) -> &'static CStr {
        match self.format {
            SmallFloat::Mxfp4 => c"mxfp4",
            SmallFloat::Mxfp8 => c"mxfp8",
            SmallFloat::Nvfp4 => c"nvfp4",
        }
    }

    /// What a call writes. MLX's own words on a failure stay inside `mlx-rs`.
    fn made(
        &self,
        op: &str,
        input: &Array,
        call: impl FnOnce(*mut mlx_array) -> i32,
    ) -> Result<Array, Exception> {
        // SAFETY: a plain constructor.
        let mut handle = unsafe { mlx_sys::mlx_array_new() };
        let status = call(&raw mut handle);
        // SAFETY: whether it was written or is still empty, nobody else owns the handle.
        let result = unsafe { Array::from_ptr(handle) };
        if status == 0 {
            return Ok(result);
        }
        Err(Exception::custom(format!(
            "{op}: {:?} {:?} with {} codes {:?} and scales {:?} is refused by MLX",
            input.shape(),
            input.dtype(),
            self.format.name(),
            self.codes.shape(),
            self.scales.shape(),
        )))
    }
}

/// What stands for an array that a call goes without.
fn absent() -> Array {
    // SAFETY: an empty handle, which is owned here.
    unsafe { Array::from_ptr(mlx_sys::mlx_array_new()) }
}

fn some(size: usize) -> mlx_optional_int {
    mlx_optional_int {
        value: int(size),
        has_value: true,
    }
}
