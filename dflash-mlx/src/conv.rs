//! The convolutions of recurrent layers and of DFlash 2.

use dflash_core::{Error, Result};
use mlx_rs::error::Exception;
use mlx_rs::ops::{as_strided, concatenate, sum_axis, zeros_dtype};
use mlx_rs::{Array, Dtype};

use crate::array::{at, cast, int, part, silu, size, sizes, wide};
use crate::weight::Place;

/// Depthwise causal convolution and silu; see `Backend::short_conv`.
pub(crate) fn short_conv(
    window: &Array,
    rows: &Array,
    kernel: &Array,
    place: Place,
) -> Result<Array> {
    let (taps, channels, count) = (size(kernel, 0), size(kernel, 1), size(rows, 1));
    for (what, t, expected) in [
        ("short convolution: rows", rows, [1, count, channels]),
        (
            "short convolution: window",
            window,
            [1, taps.saturating_sub(1), channels],
        ),
    ] {
        if sizes(t) != expected || taps == 0 || count == 0 {
            return Err(Error::shape(
                what,
                format!("{expected:?}"),
                format!("{:?}", t.shape()),
            ));
        }
    }
    let run = || -> Result<Array, Exception> {
        let all = if taps > 1 {
            concatenate(&[wide(window)?, wide(rows)?], 1)?
        } else {
            wide(rows)?
        };
        // Row t beside the rows that it sees: the same memory, read with a step of one row twice.
        let step = i64::from(int(channels));
        let shape = [1, int(count), int(taps), int(channels)];
        let seen = as_strided(&all, &shape[..], &[step, step, step, 1][..], 0)?;
        let sum = sum_axis(seen.multiply(wide(kernel)?)?, 2, false)?;
        cast(&silu(&sum, place)?, rows.dtype())
    };
    at("short_conv", run())
}

/// DFlash 2's dynamic convolution; see `Backend::dynamic_conv`.
pub(crate) fn dynamic_conv(y: &Array, base: &Array, dynamic: &Array) -> Result<Array> {
    let (rows, dim, taps, groups) = (size(y, 1), size(y, 2), size(base, 0), size(dynamic, 3));
    let fits = groups > 0
        && taps > 0
        && dim % groups == 0
        && sizes(base) == [taps, dim]
        && sizes(dynamic) == [1, rows, taps, groups];
    if !fits {
        let expected = format!("base [taps, {dim}], dynamic [1, {rows}, taps, a divisor of {dim}]");
        let found = format!("{:?} and {:?}", base.shape(), dynamic.shape());
        return Err(Error::shape("dynamic convolution", expected, found));
    }
    let width = dim / groups;
    let run = || -> Result<Array, Exception> {
        let x = wide(y)?.reshape(&[1, int(rows), int(groups), int(width)])?;
        let base = wide(base)?.reshape(&[int(taps), int(groups), int(width)])?;
        let dynamic = wide(dynamic)?;
        let mut sum: Option<Array> = None;
        for tap in 0..taps.min(rows) {
            let moving = part(&dynamic, 2, tap, 1)?.reshape(&[1, int(rows), int(groups), 1])?;
            let factor = moving.add(part(&base, 0, tap, 1)?)?;
            let shifted = if tap == 0 {
                x.clone()
            } else {
                let before = zeros_dtype(&[1, int(tap), int(groups), int(width)], Dtype::Float32)?;
                concatenate(&[before, part(&x, 1, 0, rows - tap)?], 1)?
            };
            let term = factor.multiply(shifted)?;
            sum = Some(match sum {
                Some(sum) => sum.add(term)?,
                None => term,
            });
        }
        let sum = sum.map_or_else(|| zeros_dtype(&[1, 0, int(dim)], Dtype::Float32), Ok)?;
        cast(&sum.reshape(&[1, int(rows), int(dim)])?, y.dtype())
    };
    at("dynamic_conv", run())
}
