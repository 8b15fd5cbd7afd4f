//! Keys and values of one layer in host memory, row after row.

use std::ops::Range;

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
pub struct HostKv {
    shape: KvShape,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Rows before the first that is kept.
    front: usize,
    rows: usize,
}

impl HostKv {
    /// No rows yet.
    ///
    /// # Errors
    /// A row without numbers.
    pub fn new(shape: KvShape) -> Result<Self> {
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

    /// All kept keys, `[rows, heads, head_dim]`.
    pub fn keys(&self) -> &[f32] {
        &self.k[self.kept()]
    }

    /// All kept values, `[rows, heads, head_dim]`.
    pub fn values(&self) -> &[f32] {
        &self.v[self.kept()]
    }

    fn kept(&self) -> Range<usize> {
        self.front * self.width()..(self.front + self.rows) * self.width()
    }

    /// Adds `rows` rows at the end and returns their memory for keys and values, `[rows, heads, head_dim]` each, to be filled.
    pub fn extend(&mut self, rows: usize) -> (&mut [f32], &mut [f32]) {
        let needed = self.rows + rows;
        if self.front + needed > self.capacity() {
            self.move_to(if needed > self.capacity() {
                needed + needed / 2 + STEP
            } else {
                self.capacity()
            });
        }
        let width = self.width();
        let new = (self.front + self.rows) * width..(self.front + needed) * width;
        self.rows = needed;
        (&mut self.k[new.clone()], &mut self.v[new])
    }

    /// Drops all rows but a range.
    pub fn keep(&mut self, rows: Range<usize>) {
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

    /// An independent copy.
    pub fn fork(&self) -> Self {
        Self {
            k: self.k.clone(),
            v: self.v.clone(),
            ..*self
        }
    }

    /// Bytes held, spare capacity included.
    pub fn bytes(&self) -> usize {
        (self.k.len() + self.v.len()) * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape {
        heads: 2,
        head_dim: 1,
    };

    /// Adds rows with key `position` in head 0 and its negative in head 1; values ten times that.
    fn append(kv: &mut HostKv, positions: Range<u16>) {
        let (keys, values) = kv.extend(positions.len());
        for (row, p) in positions.map(f32::from).enumerate() {
            keys[2 * row..2 * row + 2].copy_from_slice(&[p, -p]);
            values[2 * row..2 * row + 2].copy_from_slice(&[10.0 * p, -10.0 * p]);
        }
    }

    fn expect_rows(kv: &HostKv, positions: Range<u16>) {
        assert_eq!(kv.rows(), positions.len());
        for (row, p) in positions.map(f32::from).enumerate() {
            assert_eq!(
                [
                    kv.key(row, 0),
                    kv.key(row, 1),
                    kv.value(row, 0),
                    kv.value(row, 1)
                ],
                [&[p][..], &[-p], &[10.0 * p], &[-10.0 * p]]
            );
        }
        let held = kv.front * 2..(kv.front + kv.rows) * 2;
        let unused = kv.k.iter().enumerate().filter(|(i, _)| !held.contains(i));
        assert!(
            unused.clone().all(|(_, x)| x.is_nan()) || !cfg!(debug_assertions),
            "unused memory must spoil what reads it"
        );
    }

    #[test]
    fn rows_leave_at_both_ends() {
        let mut kv = HostKv::new(SHAPE).expect("sizes above 0");
        append(&mut kv, 0..5);
        kv.keep(1..4);
        expect_rows(&kv, 1..4);
        append(&mut kv, 4..6);
        expect_rows(&kv, 1..6);
        kv.keep(5..5);
        expect_rows(&kv, 0..0);
        append(&mut kv, 7..9);
        expect_rows(&kv, 7..9);
        kv.keep(0..100);
        expect_rows(&kv, 7..9);
    }

    #[test]
    fn memory_follows_what_is_kept() {
        let mut kv = HostKv::new(SHAPE).expect("sizes above 0");
        append(&mut kv, 0..1000);
        let row = kv.width() * 8;
        assert!(kv.bytes() <= row * (1000 + 500 + STEP));
        kv.keep(0..10);
        assert!(kv.bytes() <= row * 2 * (10 + STEP));
        expect_rows(&kv, 0..10);
        for p in 10..2000 {
            append(&mut kv, p..p + 1);
            kv.keep(1..11);
            expect_rows(&kv, p - 9..p + 1);
            assert!(kv.bytes() <= row * 2 * (10 + STEP));
        }
    }

    #[test]
    fn a_fork_is_independent() {
        let mut kv = HostKv::new(SHAPE).expect("sizes above 0");
        append(&mut kv, 0..3);
        let mut fork = kv.fork();
        append(&mut fork, 8..9);
        append(&mut kv, 3..4);
        expect_rows(&kv, 0..4);
        assert_eq!(fork.key(3, 0), [8.0]);
        assert!(
            HostKv::new(KvShape {
                heads: 0,
                head_dim: 1
            })
            .is_err()
        );
    }
}
