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

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape {
        heads: 2,
        head_dim: 1,
    };

    fn empty() -> DeviceKv {
        DeviceKv::new(SHAPE, DType::F32, &Device::Cpu).expect("sizes above 0")
    }

    /// Rows with key `position` in head 0 and its negative in head 1; values ten times that.
    fn append(kv: &mut DeviceKv, positions: Range<u16>) {
        let one: Vec<f32> = positions.clone().map(f32::from).collect();
        let both: Vec<f32> = one.iter().copied().chain(one.iter().map(|p| -p)).collect();
        let k = Tensor::from_vec(both, (1, 2, positions.len(), 1), &Device::Cpu).expect("fits");
        let v = k.affine(10.0, 0.0).expect("numbers");
        kv.append(&k, &v).expect("fits");
    }

    fn expect_rows(kv: &DeviceKv, positions: Range<u16>) {
        assert_eq!(kv.rows(), positions.len());
        let flat =
            |t: Tensor| -> Vec<f32> { t.flatten_all().and_then(|t| t.to_vec1()).expect("numbers") };
        if positions.is_empty() {
            return;
        }
        let (k, v) = kv.view(0..kv.rows()).expect("rows that are held");
        let wanted: Vec<f32> = positions.clone().map(f32::from).collect();
        let wanted = [&wanted[..], &wanted.iter().map(|p| -p).collect::<Vec<_>>()].concat();
        assert_eq!(flat(k), wanted);
        assert_eq!(flat(v), wanted.iter().map(|x| 10.0 * x).collect::<Vec<_>>());
        let memory = kv.memory.as_ref().expect("there are rows");
        for (i, x) in flat(memory.k.clone()).into_iter().enumerate() {
            let held = (kv.front..kv.front + kv.rows).contains(&(i % memory.capacity));
            assert_eq!(
                x.is_nan(),
                !held,
                "unused memory must spoil what reads it: number {i}"
            );
        }
    }

    #[test]
    fn rows_leave_at_both_ends() {
        let mut kv = empty();
        append(&mut kv, 0..5);
        kv.keep(1..4);
        expect_rows(&kv, 1..4);
        append(&mut kv, 4..6);
        expect_rows(&kv, 1..6);
        kv.keep(5..5);
        expect_rows(&kv, 0..0);
        append(&mut kv, 7..9);
        kv.keep(0..100);
        expect_rows(&kv, 7..9);
    }

    #[test]
    fn memory_follows_what_is_kept() {
        let mut kv = empty();
        let row = 2 * 2 * 4;
        append(&mut kv, 0..2000);
        kv.keep(0..10);
        assert!(kv.bytes() <= row * 2 * (10 + STEP));
        expect_rows(&kv, 0..10);
        for p in 10..800 {
            append(&mut kv, p..p + 1);
            kv.keep(1..11);
            assert!(kv.bytes() <= row * 2 * (10 + STEP));
        }
        expect_rows(&kv, 790..800);
    }

    #[test]
    fn a_fork_is_independent() {
        let mut kv = empty();
        append(&mut kv, 0..3);
        let mut fork = kv.fork().expect("memory");
        append(&mut fork, 8..9);
        append(&mut kv, 3..4);
        kv.keep(1..4);
        expect_rows(&kv, 1..4);
        assert_eq!(fork.rows(), 4);
        let (k, _) = fork.view(3..4).expect("a row");
        let numbers: Vec<f32> = k.flatten_all().and_then(|t| t.to_vec1()).expect("numbers");
        assert_eq!(numbers, [8.0, -8.0]);
    }

    #[test]
    fn misfits_are_errors_and_add_nothing() {
        let mut kv = empty();
        append(&mut kv, 0..3);
        let zeros =
            |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("small memory");
        for (k, v) in [
            (&[1, 2, 2, 1][..], &[1, 2, 1, 1][..]),
            (&[1, 3, 2, 1], &[1, 3, 2, 1]),
            (&[2, 2], &[2, 2]),
        ] {
            let refused = kv.append(&zeros(k), &zeros(v));
            assert!(matches!(refused, Err(Error::Shape { .. })), "{k:?} {v:?}");
        }
        expect_rows(&kv, 0..3);
        assert!(matches!(kv.view(2..4), Err(Error::Shape { .. })));
        let flat = KvShape {
            heads: 0,
            head_dim: 1,
        };
        assert!(DeviceKv::new(flat, DType::F32, &Device::Cpu).is_err());
    }
}
