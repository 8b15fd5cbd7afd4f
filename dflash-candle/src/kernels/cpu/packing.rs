//! Inputs of products in the order in which weights load.

use super::Cpu;
use super::Shared;
use super::isa::Isa;
use super::matrix::Matrix;
use super::scratch::with_scratch;
use super::tile::{Pack, packed_len};

/// Which packed forms of an input its weights need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packing {
    interleaved: bool,
    plain: bool,
}

impl Packing {
    pub(crate) fn of<'a>(weights: impl IntoIterator<Item = Matrix<'a>>) -> Self {
        let mut packing = Self {
            interleaved: false,
            plain: false,
        };
        for weight in weights {
            *(if weight.interleaved() {
                &mut packing.interleaved
            } else {
                &mut packing.plain
            }) = true;
        }
        packing
    }

    /// Numbers that all forms take.
    pub(crate) fn size(self, rows: usize, inner: usize) -> usize {
        rows * packed_len(inner) * (usize::from(self.interleaved) + usize::from(self.plain))
    }

    /// Calls `work` with the input of products that cost that many multiply-adds.
    pub(crate) fn with_input(
        self,
        cpu: &Cpu,
        x: &[f32],
        rows: usize,
        inner: usize,
        cost: usize,
        work: impl FnOnce(&Input<'_>),
    ) {
        assert_eq!(
            x.len(),
            rows * inner,
            "invariant: an input holds whole rows"
        );
        let size = self.size(rows, inner);
        let own = cpu.tasks(cost) > 1 && size <= OWN_PACKING;
        with_scratch(if own { 0 } else { size }, |scratch| {
            let packed = (!own).then(|| self.pack(cpu, x, rows, inner, scratch));
            work(&Input {
                x,
                rows,
                inner,
                packed,
            });
        });
    }

    pub(crate) fn pack<'p>(
        self,
        cpu: &Cpu,
        x: &[f32],
        rows: usize,
        inner: usize,
        scratch: &'p mut [f32],
    ) -> Packed<'p> {
        let size = rows * packed_len(inner);
        let (interleaved, plain) = scratch.split_at_mut(if self.interleaved { size } else { 0 });
        if self.interleaved {
            pack(cpu, x, rows, inner, true, interleaved);
        }
        if self.plain {
            pack(cpu, x, rows, inner, false, plain);
        }
        Packed { interleaved, plain }
    }
}

/// Packed numbers up to which every task packs the rows for itself. Rows that one thread packs for
/// another travel twice between their caches, which costs more than packing them.
const OWN_PACKING: usize = 16 * 1024;

/// An input of products, packed or to be packed by each task.
pub(crate) struct Input<'p> {
    x: &'p [f32],
    rows: usize,
    inner: usize,
    packed: Option<Packed<'p>>,
}

impl Input<'_> {
    /// Calls `work` with the packed rows that a weight needs.
    pub(crate) fn packed_for(&self, isa: Isa, weight: Matrix<'_>, work: impl FnOnce(&[f32])) {
        if let Some(packed) = &self.packed {
            return work(packed.of(weight));
        }
        with_scratch(self.rows * packed_len(self.inner), |packed| {
            let rows = self.x.chunks_exact(self.inner.max(1));
            let places = packed.chunks_exact_mut(packed_len(self.inner).max(1));
            for (row, packed) in rows.zip(places) {
                isa.run(Pack {
                    row,
                    interleaved: weight.interleaved(),
                    packed,
                });
            }
            work(packed);
        });
    }
}

/// The packed forms of an input.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'p> {
    interleaved: &'p [f32],
    plain: &'p [f32],
}

impl<'p> Packed<'p> {
    /// The form that a weight needs.
    pub(crate) fn of(&self, weight: Matrix<'_>) -> &'p [f32] {
        if weight.interleaved() {
            self.interleaved
        } else {
            self.plain
        }
    }
}

/// Packs all rows of an input; `packed` has `rows * packed_len(inner)` numbers.
fn pack(cpu: &Cpu, x: &[f32], rows: usize, inner: usize, interleaved: bool, packed: &mut [f32]) {
    assert_eq!(
        x.len(),
        rows * inner,
        "invariant: an input holds whole rows"
    );
    if inner == 0 {
        return;
    }
    let stride = packed_len(inner);
    assert!(packed.len() >= rows * stride, "invariant: packed rows fit");
    let to = Shared::new(packed);
    // Copying a number costs about as much as a few multiply-adds.
    cpu.split(rows, 1, rows * inner / 4, |range| {
        for r in range {
            // SAFETY: every row belongs to one task.
            let packed = unsafe { to.part(r * stride..(r + 1) * stride) };
            cpu.isa.run(Pack {
                row: &x[r * inner..(r + 1) * inner],
                interleaved,
                packed,
            });
        }
    });
}
