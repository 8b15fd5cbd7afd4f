//! Keys and values of one layer in the device's memory.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use dflash_core::backend::KvShape;
use dflash_core::{Error, Result};

/// Rows of spare room: what is added beyond need, and how far memory may exceed twice the rows.
const STEP: usize = 256;

/// Keys and values that grow in place.
///
/// Rows are appended to preallocated memory. Rows that leave at the front are skipped until the
/// memory is full, then the kept ones move to the start of new memory.
#[derive(Debug)]
pub struct DeviceKv {
    shape: KvShape,
    dtype: DType,
    device: Device,
    /// `[1, heads, capacity, head_dim]` each; `None` before the first row.
    memory: Option<Memory>,
    /// Rows before the first that is kept.
    front: usize,
    rows: usize,
}

#[derive(Debug)]
struct Memory {
    k: Tensor,
    v: Tensor,
    capacity: usize,
}

impl Memory {
    /// In a debug build full of numbers that spoil every result they get into.
    fn new(
        shape: KvShape,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Self> {
        let room = || unused(shape, capacity, dtype, device);
        Ok(Self {
            k: room()?,
            v: room()?,
            capacity,
        })
    }

    /// Writes rows `[1, heads, rows, head_dim]` from row `first` on.
    fn write(&self, first: usize, k: &Tensor, v: &Tensor) -> candle_core::Result<()> {
        self.k.slice_set(&k.contiguous()?, 2, first)?;
        self.v.slice_set(&v.contiguous()?, 2, first)
    }
}

fn unused(
    shape: KvShape,
    rows: usize,
    dtype: DType,
    device: &Device,
) -> candle_core::Result<Tensor> {
    let sizes = (1, shape.heads, rows, shape.head_dim);
    if cfg!(debug_assertions) {
        Tensor::full(f32::NAN, sizes, device)?.to_dtype(dtype)
    } else {
        Tensor::zeros(sizes, dtype, device)
    }
}

impl DeviceKv {
    pub(super) fn new(shape: KvShape, dtype: DType, device: &Device) -> Result<Self> {
        if shape.heads == 0 || shape.head_dim == 0 {
            return Err(Error::shape(
                "keys and values",
                "at least one head of at least one feature",
                format!("{shape:?}"),
            ));
        }
        Ok(Self {
            shape,
            dtype,
            device: device.clone(),
            memory: None,
            front: 0,
            rows: 0,
        })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |m| m.capacity)
    }

    /// Keys and values of some rows, `[heads, rows, head_dim]`, seen in place; at least one row.
    ///
    /// To be used up before the next append, which writes to the same memory.
    pub(super) fn view(&self, rows: Range<usize>) -> Result<(Tensor, Tensor)> {
        let Some(memory) = self.memory.as_ref().filter(|_| rows.end <= self.rows) else {
            return Err(Error::shape(
                "keys and values",
                format!("rows below {}", self.rows),
                format!("{rows:?}"),
            ));
        };
        let part = |t: &Tensor| {
            t.narrow(2, self.front + rows.start, rows.len())
                .and_then(|t| t.squeeze(0))
                .map_err(|e| Error::backend("attention", e))
        };
        Ok((part(&memory.k)?, part(&memory.v)?))
    }

    /// Adds rows at the end.
    pub(super) fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let KvShape { heads, head_dim } = self.shape;
        let added = k.dims().get(2).copied().unwrap_or(0);
        for (what, t) in [("keys to append", k), ("values to append", v)] {
            if t.dims() != [1, heads, added, head_dim] {
                let expected = format!("[1, {heads}, {added}, {head_dim}]");
                return Err(Error::shape(what, expected, format!("{:?}", t.dims())));
            }
        }
        if added == 0 {
            return Ok(());
        }
        // Until `rows` changes, whatever an error leaves behind lies in unused memory.
        self.write(k, v, added)
            .map_err(|e| Error::backend("kv_append", e))?;
        self.rows += added;
        Ok(())
    }

    fn write(&mut self, k: &Tensor, v: &Tensor, added: usize) -> candle_core::Result<()> {
        let needed = self.rows + added;
        let capacity = self.capacity();
        if self.front + needed > capacity {
            self.move_to(if needed > capacity {
                needed + needed / 2 + STEP
            } else {
                capacity
            })?;
        }
        let memory = self
            .memory
            .as_ref()
            .expect("invariant: there is room for at least one row");
        memory.write(
            self.front + self.rows,
            &k.to_dtype(self.dtype)?,
            &v.to_dtype(self.dtype)?,
        )
    }

    /// Moves the kept rows to the start of new memory.
    fn move_to(&mut self, capacity: usize) -> candle_core::Result<()> {
        let moved = Memory::new(self.shape, capacity, self.dtype, &self.device)?;
        if let Some(old) = self.memory.as_ref().filter(|_| self.rows > 0) {
            let kept = |t: &Tensor| t.narrow(2, self.front, self.rows);
            moved.write(0, &kept(&old.k)?, &kept(&old.v)?)?;
        }
        self.memory = Some(moved);
        self.front = 0;
        Ok(())
    }

    /// Drops all rows but a range. If memory cannot be had to move into, the old one stays.
    pub(super) fn keep(&mut self, rows: Range<usize>) {
        let end = rows.end.min(self.rows);
        let start = rows.start.min(end);
        let old = self.front..self.front + self.rows;
        self.front += start;
        self.rows = end - start;
        if cfg!(debug_assertions) {
            self.spoil(old.start..self.front);
            self.spoil(self.front + self.rows..old.end);
        }
        if self.capacity() > 2 * (self.rows + STEP) {
            // Smaller memory is a wish: rows and front are right either way.
            let _ = self.move_to(self.rows + STEP);
        }
    }

    /// Fills dropped rows with numbers that spoil every result they get into.
    fn spoil(&self, rows: Range<usize>) {
        if let Some(memory) = self.memory.as_ref().filter(|_| !rows.is_empty()) {
            // A check of debug builds, which may be missed.
            let _ = unused(self.shape, rows.len(), self.dtype, &self.device)
                .and_then(|nan| memory.write(rows.start, &nan, &nan));
        }
    }

    /// An independent copy.
    pub(super) fn fork(&self) -> Result<Self> {
        let copy = |m: &Memory| {
            Ok(Memory {
                k: m.k.copy()?,
                v: m.v.copy()?,
                capacity: m.capacity,
            })
        };
        Ok(Self {
            memory: self
                .memory
                .as_ref()
                .map(copy)
                .transpose()
                .map_err(|e: candle_core::Error| Error::backend("kv_fork", e))?,
            device: self.device.clone(),
            ..*self
        })
    }

    pub(super) fn bytes(&self) -> usize {
        2 * self.capacity() * self.shape.heads * self.shape.head_dim * self.dtype.size_in_bytes()
    }
}
