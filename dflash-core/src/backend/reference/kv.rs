//! Keys and values of one layer, row after row.

use std::ops::Range;

use super::tensor::RefTensor;
use crate::backend::KvShape;
use crate::{Error, Result};

/// Rows of spare room: what is added beyond need, and how far memory may exceed twice the rows.
const STEP: usize = 64;

/// What unused memory holds: in a debug build a number that spoils every result it gets into.
const UNUSED: f32 = if cfg!(debug_assertions) {
    f32::NAN
} else {
    0.0
};

/// Keys and values, time-major: a row is all heads of one position.
#[derive(Debug)]
pub struct RefKv {
    shape: KvShape,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Rows before the first that is kept.
    front: usize,
    rows: usize,
}

impl RefKv {
    pub(super) fn new(shape: KvShape) -> Result<Self> {
        if shape.heads == 0 || shape.head_dim == 0 {
            return Err(Error::shape(
                "keys and values",
                "at least one head of at least one feature",
                format!("{shape:?}"),
            ));
        }
        Ok(Self {
            shape,
            k: Vec::new(),
            v: Vec::new(),
            front: 0,
            rows: 0,
        })
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Sizes of a row.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The numbers of memory that no row uses: NaN in a debug build.
    pub fn unused(&self) -> Vec<f32> {
        let width = self.width();
        let used = self.front * width..(self.front + self.rows) * width;
        [&self.k, &self.v]
            .into_iter()
            .flat_map(|memory| memory[..used.start].iter().chain(&memory[used.end..]))
            .copied()
            .collect()
    }

    fn width(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    fn capacity(&self) -> usize {
        self.k.len() / self.width()
    }

    /// The key of a row and head.
    pub fn key(&self, row: usize, head: usize) -> &[f32] {
        &self.k[self.span(row, head)]
    }

    /// The value of a row and head.
    pub fn value(&self, row: usize, head: usize) -> &[f32] {
        &self.v[self.span(row, head)]
    }

    fn span(&self, row: usize, head: usize) -> Range<usize> {
        debug_assert!(row < self.rows, "only rows that are held are read");
        let start = (self.front + row) * self.width() + head * self.shape.head_dim;
        start..start + self.shape.head_dim
    }

    pub(super) fn append(&mut self, k: &RefTensor, v: &RefTensor) -> Result<()> {
        let KvShape { heads, head_dim } = self.shape;
        let added = k.shape().get(2).copied().unwrap_or(0);
        k.expect("keys to append", &[1, heads, added, head_dim])?;
        v.expect("values to append", &[1, heads, added, head_dim])?;
        if self.front + self.rows + added > self.capacity() {
            let needed = self.rows + added;
            self.move_to(if needed > self.capacity() {
                needed + needed / 2 + STEP
            } else {
                self.capacity()
            });
        }
        let (width, first) = (self.width(), self.front + self.rows);
        for (memory, new) in [(&mut self.k, k), (&mut self.v, v)] {
            for head in 0..heads {
                for row in 0..added {
                    let from = (head * added + row) * head_dim;
                    let to = (first + row) * width + head * head_dim;
                    memory[to..to + head_dim].copy_from_slice(&new.data()[from..from + head_dim]);
                }
            }
        }
        self.rows += added;
        Ok(())
    }

    pub(super) fn keep(&mut self, rows: Range<usize>) {
        let end = rows.end.min(self.rows);
        let start = rows.start.min(end);
        let (width, old) = (self.width(), self.front..self.front + self.rows);
        self.front += start;
        self.rows = end - start;
        for memory in [&mut self.k, &mut self.v] {
            memory[old.start * width..self.front * width].fill(UNUSED);
            memory[(self.front + self.rows) * width..old.end * width].fill(UNUSED);
        }
        if self.capacity() > 2 * (self.rows + STEP) {
            self.move_to(self.rows + STEP);
        }
    }

    /// Moves the kept rows to the start of new memory.
    fn move_to(&mut self, capacity: usize) {
        let width = self.width();
        let kept = self.front * width..(self.front + self.rows) * width;
        for memory in [&mut self.k, &mut self.v] {
            let mut moved = Vec::with_capacity(capacity * width);
            moved.extend_from_slice(&memory[kept.clone()]);
            moved.resize(capacity * width, UNUSED);
            *memory = moved;
        }
        self.front = 0;
    }

    pub(super) fn fork(&self) -> Self {
        Self {
            k: self.k.clone(),
            v: self.v.clone(),
            ..*self
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.k.len() + self.v.len()) * size_of::<f32>()
    }
}
