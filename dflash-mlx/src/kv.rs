//! Keys and values of one layer.

use std::ops::Range;

use dflash_core::backend::KvShape;
use dflash_core::{Error, Result};
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexMutOp;
use mlx_rs::ops::{full, zeros_dtype};
use mlx_rs::{Array, Dtype};

use crate::array::{at, cast, int, part, range_of, sizes};

/// Rows that memory grows by at least.
const STEP: usize = 256;

/// Keys and values that grow in steps.
///
/// Rows are written into arrays with room to spare. MLX's arrays never change: a write makes a new
/// array, which takes over the memory of the old one where nobody else holds it. So the arrays are
/// held here alone, and views of them are used up before the next write.
#[derive(Debug)]
pub struct MlxKv {
    shape: KvShape,
    dtype: Dtype,
    /// `[1, heads, capacity, head_dim]` each; `None` before the first row.
    memory: Option<[Array; 2]>,
    capacity: usize,
    /// Rows before the first that is kept.
    front: usize,
    rows: usize,
}

impl MlxKv {
    pub(crate) fn new(shape: KvShape, dtype: Dtype) -> Result<Self> {
        if shape.heads == 0 || shape.head_dim == 0 {
            let expected = "at least one head of at least one feature";
            return Err(Error::shape(
                "keys and values",
                expected,
                format!("{shape:?}"),
            ));
        }
        Ok(Self {
            shape,
            dtype,
            memory: None,
            capacity: 0,
            front: 0,
            rows: 0,
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// The arrays of keys and values `[1, heads, capacity, head_dim]`, the rows before the first that is kept, and the capacity.
    pub(crate) fn memory(&self) -> Option<(&Array, &Array, usize, usize)> {
        let [k, v] = self.memory.as_ref()?;
        Some((k, v, self.front, self.capacity))
    }

    /// Keys and values of some rows, `[1, heads, rows, head_dim]`; `None` for no rows.
    pub(crate) fn view(&self, rows: Range<usize>) -> Result<Option<[Array; 2]>, Exception> {
        let Some([k, v]) = self.memory.as_ref().filter(|_| !rows.is_empty()) else {
            return Ok(None);
        };
        let seen = |t| part(t, 2, self.front + rows.start, rows.len());
        Ok(Some([seen(k)?, seen(v)?]))
    }

    pub(crate) fn append(&mut self, k: &Array, v: &Array) -> Result<()> {
        let KvShape { heads, head_dim } = self.shape;
        let added = sizes(k).get(2).copied().unwrap_or(0);
        for (what, t) in [("keys to append", k), ("values to append", v)] {
            if sizes(t) != [1, heads, added, head_dim] {
                let expected = format!("[1, {heads}, {added}, {head_dim}]");
                return Err(Error::shape(what, expected, format!("{:?}", t.shape())));
            }
        }
        if added == 0 {
            return Ok(());
        }
        // Until `rows` changes, whatever an error leaves behind lies in unused memory.
        at("kv_append", self.write(k, v, added))?;
        self.rows += added;
        Ok(())
    }

    fn write(&mut self, k: &Array, v: &Array, added: usize) -> Result<(), Exception> {
        let needed = self.rows + added;
        if self.front + needed > self.capacity {
            let capacity = if needed > self.capacity {
                (needed + needed / 2).next_multiple_of(STEP)
            } else {
                self.capacity
            };
            self.move_to(capacity)?;
        }
        let index = range_of(2, self.front + self.rows, added);
        if let Some([keys, values]) = &mut self.memory {
            keys.try_index_mut(index.as_slice(), cast(k, self.dtype)?)?;
            values.try_index_mut(index.as_slice(), cast(v, self.dtype)?)?;
        }
        Ok(())
    }

    /// Moves the kept rows to the start of new memory.
    fn move_to(&mut self, capacity: usize) -> Result<(), Exception> {
        let KvShape { heads, head_dim } = self.shape;
        let shape = [1, int(heads), int(capacity), int(head_dim)];
        let mut moved = [self.unused(&shape)?, self.unused(&shape)?];
        if let Some(kept) = self.view(0..self.rows)? {
            let index = range_of(2, 0, self.rows);
            for (to, from) in moved.iter_mut().zip(kept) {
                to.try_index_mut(index.as_slice(), from)?;
            }
        }
        self.memory = Some(moved);
        self.capacity = capacity;
        self.front = 0;
        Ok(())
    }

    /// In a debug build full of numbers that spoil every result they get into.
    fn unused(&self, shape: &[i32]) -> Result<Array, Exception> {
        if cfg!(debug_assertions) {
            cast(&full::<f32>(shape, Array::from_f32(f32::NAN))?, self.dtype)
        } else {
            zeros_dtype(shape, self.dtype)
        }
    }

    /// Drops all rows but a range. Rows that leave at the front are skipped until memory is full.
    pub(crate) fn keep(&mut self, rows: Range<usize>) {
        let end = rows.end.min(self.rows);
        let start = rows.start.min(end);
        self.front += start;
        self.rows = end - start;
        if self.rows == 0 {
            self.front = 0;
        }
    }

    /// An independent copy: arrays never change, so it may hold the same ones. The next write of
    /// either then copies.
    pub(crate) fn fork(&self) -> Self {
        Self {
            memory: self.memory.clone(),
            ..*self
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.iter().flatten().map(Array::nbytes).sum()
    }
}
