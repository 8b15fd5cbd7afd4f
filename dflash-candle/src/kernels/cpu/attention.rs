//! Attention of query rows to cached keys and, optionally, to the keys of a block.
//!
//! For every query row and head: scores over the row's visible keys, their maximum, exponentials,
//! their sum, and the weighted sum of the values. Each score is one product in the order of
//! a linear layer; the sum of the exponentials assigns lanes by a key's number among the row's own
//! visible keys; a value is added key by key. So a row depends on the keys that it sees, in their
//! order, and neither on other rows nor on where the keys lie in a buffer.
//!
//! Two passes were chosen over a running maximum: rescaling would tie the result to the tile size,
//! and the scores of a group of rows fit in the second-level cache at the lengths that matter.

use std::ops::Range;

use super::attention_tile::{Exponentials, Scores, Weigh};
use super::isa::Isa;
use super::rope::Heads;
use super::scratch::with_scratch;
use super::sight::Visible;
use super::simd::LANES;
use super::tile::packed_len;
use super::{Cpu, Shared};

/// Query rows times heads that share one walk over the keys.
const GROUP: usize = 64;
/// Query rows times heads of the largest register tile.
const TILE: usize = 4;
/// Keys that one key head passes at a time; with more heads, each passes a quarter of that.
const CHUNK: usize = 64;
/// Numbers that the scores of one group may have, unless a single row needs more.
const GROUP_SCORES: usize = 1 << 19;

/// Keys and values, `[rows, kv_heads, dim]` without gaps; the slices hold exactly the valid rows.
#[derive(Debug, Clone, Copy)]
pub struct KeysValues<'a> {
    /// Keys after norm and rope.
    pub keys: &'a [f32],
    /// Values.
    pub values: &'a [f32],
}

impl KeysValues<'_> {
    /// No rows.
    pub const EMPTY: Self = Self {
        keys: &[],
        values: &[],
    };
}

/// Shapes of an attention call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Where the queries lie; query head h uses key head h / (heads / kv_heads).
    pub queries: Heads,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
}

/// `out` `[time, heads, dim]` = softmax(scale · q·kᵀ) · v over each row's visible keys.
///
/// `visible` has one entry per query row. A row that sees nothing becomes zeros.
///
/// # Panics
/// If a slice does not match its shape, or a row sees keys that do not exist.
pub fn attention(
    cpu: &Cpu,
    shape: Attention,
    q: &[f32],
    cache: KeysValues<'_>,
    block: KeysValues<'_>,
    visible: &[Visible],
    out: &mut [f32],
) {
    let Attention {
        queries, kv_heads, ..
    } = shape;
    let Heads {
        time, heads, dim, ..
    } = queries;
    assert!(
        q.len() >= queries.span(),
        "invariant: all queries lie inside the input"
    );
    assert!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "invariant: query heads are shared evenly among key heads"
    );
    assert_eq!(
        out.len(),
        time * heads * dim,
        "invariant: the output has the shape of the queries"
    );
    assert_eq!(visible.len(), time, "invariant: a range per query row");
    let width = kv_heads * dim;
    for kv in [cache, block] {
        assert!(
            kv.keys.len() == kv.values.len() && kv.keys.len().is_multiple_of(width.max(1)),
            "invariant: keys and values hold whole rows"
        );
    }
    let (cache_rows, block_rows) = (
        cache.keys.len() / width.max(1),
        block.keys.len() / width.max(1),
    );
    let mut seen = 0;
    for v in visible {
        assert!(
            v.cache.start <= v.cache.end && v.cache.end <= cache_rows,
            "invariant: visible cache rows are valid"
        );
        assert!(
            v.block.start <= v.block.end && v.block.end <= block_rows,
            "invariant: visible block rows exist"
        );
        seen += v.cache.len() + v.block.len();
    }
    if out.is_empty() {
        return;
    }
    let per_kv = heads / kv_heads;
    let longest = visible
        .iter()
        .map(|v| v.cache.len() + v.block.len())
        .max()
        .unwrap_or(0)
        .max(1);
    let cost = seen * heads * dim * 2;
    let tasks = cpu.tasks(cost);
    // Many rows: one key head at a time, whose keys are then used often enough to stay close.
    // Few rows: neighbouring key heads together, so that the cache is walked in memory order.
    let rows = (GROUP / per_kv)
        .min(GROUP_SCORES / (per_kv * longest))
        .clamp(1, (time * kv_heads).div_ceil(tasks));
    let heads_each = if rows * per_kv >= GROUP / 2 {
        1
    } else {
        kv_heads.div_ceil(tasks.div_ceil(time.div_ceil(rows)))
    };
    let pieces = kv_heads.div_ceil(heads_each);
    let all = Shared::new(out);
    cpu.split(time.div_ceil(rows) * pieces, 1, cost, |range| {
        for task in range {
            let (start, first) = (task / pieces * rows, task % pieces * heads_each);
            let group = Group {
                shape,
                q,
                cache,
                block,
                visible: &visible[start..(start + rows).min(time)],
                start,
                kv_heads: first..(first + heads_each).min(kv_heads),
                out: all,
            };
            group.compute(cpu.isa);
        }
    });
}

/// Some query rows and the query heads of some key heads.
struct Group<'a> {
    shape: Attention,
    q: &'a [f32],
    cache: KeysValues<'a>,
    block: KeysValues<'a>,
    visible: &'a [Visible],
    start: usize,
    kv_heads: Range<usize>,
    out: Shared<'a>,
}

/// Rows of one source that a group walks over.
struct Walk<'a> {
    kv: KeysValues<'a>,
    range: fn(&Visible) -> &Range<usize>,
    /// From the first to the last row that any query row sees.
    union: Range<usize>,
    /// Column of the union's first row in the scores.
    column: usize,
}

impl<'a> Walk<'a> {
    fn new(
        kv: KeysValues<'a>,
        range: fn(&Visible) -> &Range<usize>,
        visible: &[Visible],
        column: usize,
    ) -> Self {
        let seen = || visible.iter().map(range).filter(|r| !r.is_empty());
        let union =
            seen().map(|r| r.start).min().unwrap_or(0)..seen().map(|r| r.end).max().unwrap_or(0);
        Self {
            kv,
            range,
            union,
            column,
        }
    }

    /// Columns of the scores that hold a row's own keys.
    fn columns(&self, visible: &Visible) -> Range<usize> {
        let own = (self.range)(visible);
        if own.is_empty() {
            return self.column..self.column;
        }
        own.start - self.union.start + self.column..own.end - self.union.start + self.column
    }
}

/// Working memory of one key head of a group.
struct Head<'s> {
    /// Packed, scaled queries.
    q: &'s mut [f32],
    /// One line per query row.
    scores: &'s mut [f32],
    /// Sums of values, `acc_stride` per query row.
    acc: &'s mut [f32],
}

/// Sizes that the parts of a group share.
#[derive(Clone, Copy)]
struct Sizes {
    dim: usize,
    /// Query heads per key head.
    per_kv: usize,
    /// Query rows times `per_kv`.
    rows: usize,
    /// Numbers between the keys of neighbouring cache rows.
    stride: usize,
    /// Columns of the scores.
    keys: usize,
    /// Numbers per row of accumulators.
    acc_stride: usize,
    /// Keys that all heads and rows pass before the next ones are read.
    chunk: usize,
}

impl Group<'_> {
    fn compute(&self, isa: Isa) {
        let Attention {
            queries,
            kv_heads,
            scale,
        } = self.shape;
        let (dim, per_kv) = (queries.dim, queries.heads / kv_heads);
        let rows = self.visible.len() * per_kv;
        let cache = Walk::new(self.cache, |v| &v.cache, self.visible, 0);
        let block = Walk::new(self.block, |v| &v.block, self.visible, cache.union.len());
        let keys = cache.union.len() + block.union.len();
        let chunk = if self.kv_heads.len() == 1 {
            CHUNK
        } else {
            CHUNK / 4
        };
        let sizes = Sizes {
            dim,
            per_kv,
            rows,
            stride: kv_heads * dim,
            keys,
            acc_stride: dim.next_multiple_of(LANES),
            chunk,
        };
        let parts = [
            rows * packed_len(dim),
            (rows * keys).next_multiple_of(LANES),
            rows * sizes.acc_stride,
        ];
        let per_head: usize = parts.iter().sum();
        with_scratch(per_head * self.kv_heads.len(), |scratch| {
            let mut heads: Vec<Head<'_>> = scratch
                .chunks_exact_mut(per_head)
                .take(self.kv_heads.len())
                .map(|scratch| {
                    let (q, scratch) = scratch.split_at_mut(parts[0]);
                    let (scores, acc) = scratch.split_at_mut(parts[1]);
                    Head { q, scores, acc }
                })
                .collect();
            for (kv_head, head) in self.kv_heads.clone().zip(&mut heads) {
                for (row, packed) in head.q.chunks_exact_mut(packed_len(dim)).enumerate() {
                    let from =
                        queries.at(self.start + row / per_kv, kv_head * per_kv + row % per_kv);
                    for (to, q) in packed.iter_mut().zip(&self.q[from..from + dim]) {
                        *to = q * scale;
                    }
                    packed[dim..].fill(0.0);
                }
                head.acc.fill(0.0);
            }
            for walk in [&cache, &block] {
                self.score(isa, sizes, walk, &mut heads);
            }
            let mut sums = Vec::with_capacity(rows * heads.len());
            for head in &mut heads {
                for row in 0..rows {
                    let seen = &self.visible[row / per_kv];
                    let (first, second) =
                        head.scores[row * keys..(row + 1) * keys].split_at_mut(block.column);
                    let own = block.columns(seen);
                    let second = &mut second[own.start - block.column..own.end - block.column];
                    sums.push(isa.run(Exponentials {
                        first: &mut first[cache.columns(seen)],
                        second,
                    }));
                }
            }
            for walk in [&cache, &block] {
                self.add_values(isa, sizes, walk, &mut heads);
            }
            for ((i, kv_head), head) in self.kv_heads.clone().enumerate().zip(&heads) {
                for (row, acc) in head.acc.chunks_exact(sizes.acc_stride).enumerate() {
                    let (t, h) = (self.start + row / per_kv, kv_head * per_kv + row % per_kv);
                    let at = (t * queries.heads + h) * dim;
                    let sum = sums[i * rows + row];
                    let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                    // SAFETY: every (row, head) belongs to one group.
                    let out = unsafe { self.out.part(at..at + dim) };
                    for (out, acc) in out.iter_mut().zip(acc) {
                        *out = acc * factor;
                    }
                }
            }
        });
    }

    /// Scores of all query rows against the keys of one source.
    fn score(&self, isa: Isa, sizes: Sizes, walk: &Walk<'_>, heads: &mut [Head<'_>]) {
        let Sizes {
            dim,
            rows,
            stride,
            keys,
            chunk,
            ..
        } = sizes;
        for start in walk.union.clone().step_by(chunk) {
            let count = chunk.min(walk.union.end - start);
            for (kv_head, head) in self.kv_heads.clone().zip(&mut *heads) {
                let (out, from) = (
                    &mut head.scores[walk.column + start - walk.union.start..],
                    start * stride + kv_head * dim,
                );
                Scores {
                    q: head.q,
                    rows,
                    keys: &walk.kv.keys[from..],
                    stride,
                    dim,
                    count,
                    out,
                    out_stride: keys,
                }
                .compute(isa);
            }
        }
    }

    /// Adds the weighted values of one source to the accumulators, in the order of the keys.
    ///
    /// Query rows go together as many as make a register tile, over the keys that all of them see;
    /// keys before and after those are added row by row, so hidden values are never touched.
    fn add_values(&self, isa: Isa, sizes: Sizes, walk: &Walk<'_>, heads: &mut [Head<'_>]) {
        let Sizes {
            dim,
            per_kv,
            stride,
            keys,
            acc_stride,
            chunk,
            ..
        } = sizes;
        let together = TILE.div_ceil(per_kv);
        for start in (walk.column..walk.column + walk.union.len()).step_by(chunk) {
            let end = (start + chunk).min(walk.column + walk.union.len());
            let own = |v: &Visible| {
                let columns = walk.columns(v);
                columns.start.clamp(start, end)..columns.end.clamp(start, end)
            };
            for (kv_head, head) in self.kv_heads.clone().zip(&mut *heads) {
                let values = &walk.kv.values
                    [(walk.union.start + start - walk.column) * stride + kv_head * dim..];
                let mut add = |rows: Range<usize>, columns: Range<usize>| {
                    if !columns.is_empty() {
                        let weights = &head.scores[rows.start * keys + columns.start..];
                        let values = &values[(columns.start - start) * stride..];
                        let acc = &mut head.acc[rows.start * acc_stride..rows.end * acc_stride];
                        isa.run(Weigh {
                            weights,
                            keys,
                            count: columns.len(),
                            values,
                            stride,
                            dim,
                            acc,
                            acc_stride,
                        });
                    }
                };
                for (i, few) in self.visible.chunks(together).enumerate() {
                    let row = i * together * per_kv;
                    let all = few
                        .iter()
                        .map(own)
                        .reduce(|a, b| a.start.max(b.start)..a.end.min(b.end));
                    let common = all.filter(|c| !c.is_empty());
                    for (t, v) in few.iter().enumerate() {
                        let end = common.as_ref().map_or(own(v).end, |c| c.start);
                        add(row + t * per_kv..row + (t + 1) * per_kv, own(v).start..end);
                    }
                    if let Some(common) = common {
                        add(row..row + few.len() * per_kv, common.clone());
                        for (t, v) in few.iter().enumerate() {
                            add(
                                row + t * per_kv..row + (t + 1) * per_kv,
                                common.end..own(v).end,
                            );
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
