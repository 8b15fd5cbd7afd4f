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
use super::simd::LANES;
use super::tile::packed_len;
use super::{Cpu, Shared};

/// Query rows times heads that share one walk over the keys.
const GROUP: usize = 64;
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

/// What one query row sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// Rows of the cache.
    pub cache: Range<usize>,
    /// Rows of the block.
    pub block: Range<usize>,
}

/// The rule by which rows of a call see keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// Position of the first query row; rows follow each other.
    pub first_query: usize,
    /// Position of the cache's first row.
    pub first_key: usize,
    /// Valid rows of the cache.
    pub cache_rows: usize,
    /// Rows of the block, at the positions of the query rows; 0 if there is none.
    pub block_rows: usize,
    /// A row sees keys with `position − key position < window`.
    pub window: Option<usize>,
    /// A row sees no key after its own position.
    pub causal: bool,
}

impl Sight {
    /// What query row `t` sees.
    ///
    /// The window reaches backwards only: a bidirectional row sees everything after itself.
    pub fn of_row(&self, t: usize) -> Visible {
        let position = self.first_query + t;
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let end = if self.causal {
            position + 1
        } else {
            usize::MAX
        };
        let clip = |start: usize, rows: usize| {
            let low = first.saturating_sub(start).min(rows);
            low..end.saturating_sub(start).min(rows).max(low)
        };
        Visible {
            cache: clip(self.first_key, self.cache_rows),
            block: clip(self.first_query, self.block_rows),
        }
    }
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
    // Enough groups for all threads, few enough walks over the keys.
    let share = (time * kv_heads)
        .div_ceil(cpu.tasks(seen * heads * dim * 2))
        .max(1);
    let rows = (GROUP / per_kv)
        .min(GROUP_SCORES / (per_kv * longest))
        .clamp(1, share);
    let groups = time.div_ceil(rows);
    let all = Shared::new(out);
    cpu.split(groups * kv_heads, 1, seen * heads * dim * 2, |tasks| {
        for task in tasks {
            let start = task / kv_heads * rows;
            let group = Group {
                shape,
                q,
                cache,
                block,
                visible: &visible[start..(start + rows).min(time)],
                start,
                kv_head: task % kv_heads,
                out: all,
            };
            group.compute(cpu.isa);
        }
    });
}

/// Some query rows and the query heads of one key head.
struct Group<'a> {
    shape: Attention,
    q: &'a [f32],
    cache: KeysValues<'a>,
    block: KeysValues<'a>,
    visible: &'a [Visible],
    start: usize,
    kv_head: usize,
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
        let (q_stride, acc_stride) = (packed_len(dim), dim.next_multiple_of(LANES));
        let (q_size, scores_size) = (rows * q_stride, (rows * keys).next_multiple_of(LANES));
        with_scratch(q_size + scores_size + rows * acc_stride, |scratch| {
            let (packed, scratch) = scratch.split_at_mut(q_size);
            let (scores, acc) = scratch.split_at_mut(scores_size);
            let acc = &mut acc[..rows * acc_stride];
            for (row, packed) in packed.chunks_exact_mut(q_stride).enumerate() {
                let from = queries.at(
                    self.start + row / per_kv,
                    self.kv_head * per_kv + row % per_kv,
                );
                for (to, q) in packed.iter_mut().zip(&self.q[from..from + dim]) {
                    *to = q * scale;
                }
                packed[dim..].fill(0.0);
            }
            acc.fill(0.0);
            for walk in [&cache, &block] {
                if !walk.union.is_empty() {
                    let start = (walk.union.start * kv_heads + self.kv_head) * dim;
                    let out = &mut scores[walk.column..];
                    Scores {
                        q: packed,
                        rows,
                        keys: &walk.kv.keys[start..],
                        stride: kv_heads * dim,
                        dim,
                        count: walk.union.len(),
                        out,
                        out_stride: keys,
                    }
                    .compute(isa);
                }
            }
            let mut sums = vec![0.0; rows];
            for (row, sum) in sums.iter_mut().enumerate() {
                let seen = &self.visible[row / per_kv];
                let line = &mut scores[row * keys..(row + 1) * keys];
                let (first, second) = line.split_at_mut(block.column);
                let own = block.columns(seen);
                let second = &mut second[own.start - block.column..own.end - block.column];
                *sum = isa.run(Exponentials {
                    first: &mut first[cache.columns(seen)],
                    second,
                });
            }
            for walk in [&cache, &block] {
                let start = (walk.union.start * kv_heads + self.kv_head) * dim;
                let values = &walk.kv.values[start.min(walk.kv.values.len())..];
                self.add_values(isa, walk, values, scores, keys, acc, acc_stride);
            }
            for (row, acc) in acc.chunks_exact(acc_stride).enumerate() {
                let (t, h) = (
                    self.start + row / per_kv,
                    self.kv_head * per_kv + row % per_kv,
                );
                let at = (t * queries.heads + h) * dim;
                let factor = if sums[row] == 0.0 {
                    0.0
                } else {
                    1.0 / sums[row]
                };
                // SAFETY: every (row, head) belongs to one group.
                let out = unsafe { self.out.part(at..at + dim) };
                for (out, acc) in out.iter_mut().zip(acc) {
                    *out = acc * factor;
                }
            }
        });
    }

    /// Adds the weighted values of one source to the accumulators, in the order of the keys.
    ///
    /// Query rows go together as many as make a register tile, over the keys that all of them see;
    /// keys before and after those are added row by row, so hidden values are never touched.
    #[expect(clippy::too_many_arguments, reason = "the parts of one scratch buffer")]
    fn add_values(
        &self,
        isa: Isa,
        walk: &Walk<'_>,
        values: &[f32],
        scores: &[f32],
        keys: usize,
        acc: &mut [f32],
        acc_stride: usize,
    ) {
        let (dim, stride) = (
            self.shape.queries.dim,
            self.shape.kv_heads * self.shape.queries.dim,
        );
        let per_kv = self.shape.queries.heads / self.shape.kv_heads;
        let mut add = |rows: Range<usize>, columns: Range<usize>| {
            if !columns.is_empty() {
                let weights = &scores[rows.start * keys + columns.start..];
                let values = &values[(columns.start - walk.column) * stride..];
                let acc = &mut acc[rows.start * acc_stride..rows.end * acc_stride];
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
        let together = 4_usize.div_ceil(per_kv);
        for (i, few) in self.visible.chunks(together).enumerate() {
            let row = i * together * per_kv;
            let common = few
                .iter()
                .map(|v| walk.columns(v))
                .reduce(|a, b| a.start.max(b.start)..a.end.min(b.end))
                .filter(|c| !c.is_empty());
            for (t, v) in few.iter().enumerate() {
                let own = walk.columns(v);
                add(
                    row + t * per_kv..row + (t + 1) * per_kv,
                    own.start..common.as_ref().map_or(own.end, |c| c.start),
                );
            }
            if let Some(common) = common {
                add(row..row + few.len() * per_kv, common.clone());
                for (t, v) in few.iter().enumerate() {
                    add(
                        row + t * per_kv..row + (t + 1) * per_kv,
                        common.end..walk.columns(v).end,
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Numbers, assert_bits, assert_close, contexts, single};
    use super::*;

    /// Numbers of one case: queries `[time, heads, dim]`, keys and values `[rows, kv_heads, dim]`.
    struct Case {
        heads: usize,
        kv_heads: usize,
        dim: usize,
        sight: Sight,
        time: usize,
        q: Vec<f32>,
        cache: [Vec<f32>; 2],
        block: [Vec<f32>; 2],
    }

    impl Case {
        fn new(heads: usize, kv_heads: usize, dim: usize, time: usize, sight: Sight) -> Self {
            let mut n = Numbers::new((heads * dim + time) as u64);
            let width = kv_heads * dim;
            let mut q = n.vec(time * heads * dim);
            q.iter_mut().for_each(|q| *q *= 3.0);
            let cache = [
                n.vec(sight.cache_rows * width),
                n.vec(sight.cache_rows * width),
            ];
            let block = [
                n.vec(sight.block_rows * width),
                n.vec(sight.block_rows * width),
            ];
            Self {
                heads,
                kv_heads,
                dim,
                sight,
                time,
                q,
                cache,
                block,
            }
        }

        fn run_rows(&self, cpu: &Cpu, rows: Range<usize>) -> Vec<f32> {
            let width = self.heads * self.dim;
            let mut out = vec![f32::NAN; rows.len() * width];
            let visible: Vec<Visible> = rows.clone().map(|t| self.sight.of_row(t)).collect();
            let shape = Attention {
                queries: Heads::contiguous(rows.len(), self.heads, self.dim),
                kv_heads: self.kv_heads,
                scale: 0.3,
            };
            let [cache, block] = [&self.cache, &self.block].map(|kv| KeysValues {
                keys: &kv[0],
                values: &kv[1],
            });
            attention(
                cpu,
                shape,
                &self.q[rows.start * width..rows.end * width],
                cache,
                block,
                &visible,
                &mut out,
            );
            out
        }

        fn naive(&self) -> Vec<f64> {
            let mut out = Vec::new();
            for t in 0..self.time {
                let seen = self.sight.of_row(t);
                for h in 0..self.heads {
                    let q = &self.q[(t * self.heads + h) * self.dim..][..self.dim];
                    let kv_head = h / (self.heads / self.kv_heads);
                    let row = |x: &[f32], j: usize| -> Vec<f64> {
                        x[(j * self.kv_heads + kv_head) * self.dim..][..self.dim]
                            .iter()
                            .map(|v| f64::from(*v))
                            .collect()
                    };
                    let mut kv: Vec<(Vec<f64>, Vec<f64>)> = seen
                        .cache
                        .clone()
                        .map(|j| (row(&self.cache[0], j), row(&self.cache[1], j)))
                        .collect();
                    kv.extend(
                        seen.block
                            .clone()
                            .map(|j| (row(&self.block[0], j), row(&self.block[1], j))),
                    );
                    let scores: Vec<f64> = kv
                        .iter()
                        .map(|(k, _)| {
                            0.3 * k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>()
                        })
                        .collect();
                    let max = scores.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                    out.extend((0..self.dim).map(|d| {
                        if kv.is_empty() {
                            0.0
                        } else {
                            kv.iter()
                                .zip(&scores)
                                .map(|((_, v), s)| (s - max).exp() / sum * v[d])
                                .sum()
                        }
                    }));
                }
            }
            out
        }
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (heads, kv_heads, dim) in [(2, 2, 3), (6, 2, 32), (4, 1, 40), (8, 4, 64), (3, 3, 128)] {
            // A causal call whose own rows are the cache's last, with and without a window.
            for (rows, time, window) in [
                (1, 1, None),
                (20, 16, None),
                (90, 17, Some(5)),
                (70, 33, Some(40)),
                (300, 3, Some(1)),
            ] {
                let sight = Sight {
                    first_query: 100 + rows - time,
                    first_key: 100,
                    cache_rows: rows,
                    block_rows: 0,
                    window,
                    causal: true,
                };
                cases.push(Case::new(heads, kv_heads, dim, time, sight));
            }
            // A draft's block behind its context, bidirectional and causal.
            for (rows, time, window, causal) in [
                (37, 16, None, false),
                (37, 8, Some(20), false),
                (18, 7, Some(6), true),
                (0, 4, None, false),
                (0, 1, Some(1), true),
            ] {
                let sight = Sight {
                    first_query: 50 + rows,
                    first_key: 50,
                    cache_rows: rows,
                    block_rows: time,
                    window,
                    causal,
                };
                cases.push(Case::new(heads, kv_heads, dim, time, sight));
            }
        }
        // Ranges that have no key in common, and a row that sees nothing.
        cases.push(Case::new(
            2,
            1,
            16,
            9,
            Sight {
                first_query: 3,
                first_key: 4,
                cache_rows: 12,
                block_rows: 0,
                window: Some(1),
                causal: true,
            },
        ));
        cases
    }

    #[test]
    fn attention_matches_a_naive_softmax() {
        for cpu in single() {
            for case in cases() {
                let what = format!(
                    "{cpu:?} {:?} {} {} {}",
                    case.sight, case.heads, case.kv_heads, case.dim
                );
                assert_close(
                    &case.run_rows(&cpu, 0..case.time),
                    &case.naive(),
                    1e-5,
                    &what,
                );
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company() {
        for cpu in contexts() {
            for case in cases() {
                let all = case.run_rows(&cpu, 0..case.time);
                let width = case.heads * case.dim;
                for count in [1, 2, 3, 5, 8, 16] {
                    for start in (0..case.time).step_by(count) {
                        let rows = start..(start + count).min(case.time);
                        let part = case.run_rows(&cpu, rows.clone());
                        assert_bits(
                            &part,
                            &all[rows.start * width..rows.end * width],
                            &format!("{cpu:?} {:?} rows {rows:?}", case.sight),
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn instruction_sets_with_fused_arithmetic_agree() {
        let fused: Vec<Cpu> = single()
            .into_iter()
            .filter(|c| c.isa() != Isa::portable())
            .collect();
        for case in cases() {
            for cpu in &fused {
                assert_bits(
                    &case.run_rows(cpu, 0..case.time),
                    &case.run_rows(&fused[0], 0..case.time),
                    &format!("{cpu:?}"),
                );
            }
        }
    }

    #[test]
    fn hidden_rows_and_buffer_places_change_nothing() {
        for cpu in contexts() {
            let (heads, kv_heads, dim, time, rows) = (4, 2, 24, 5, 40);
            let sight = Sight {
                first_query: 60 + rows - time,
                first_key: 60,
                cache_rows: rows,
                block_rows: 0,
                window: Some(11),
                causal: true,
            };
            let mut case = Case::new(heads, kv_heads, dim, time, sight);
            let expected = case.run_rows(&cpu, 0..time);
            let width = kv_heads * dim;
            // Rows that no query row sees are not numbers.
            for x in &mut case.cache {
                x[..(rows - time - 10) * width].fill(f32::NAN);
            }
            assert_bits(
                &case.run_rows(&cpu, 0..time),
                &expected,
                &format!("{cpu:?} poisoned"),
            );
            // Rows that only later query rows see must not spoil earlier ones.
            let mut late = Case {
                cache: case.cache.clone(),
                block: case.block.clone(),
                q: case.q.clone(),
                ..case
            };
            for x in &mut late.cache {
                x[(rows - 2) * width..].fill(f32::NAN);
            }
            let found = late.run_rows(&cpu, 0..time);
            let clean = (time - 2) * heads * dim;
            assert_bits(
                &found[..clean],
                &expected[..clean],
                &format!("{cpu:?} poisoned later rows"),
            );
            assert!(
                found[clean..].iter().all(|x| x.is_nan()),
                "rows that see them are spoiled"
            );
            // The same keys at another place of the buffer, after the first ones were dropped.
            let mut moved = Case {
                cache: case.cache.clone(),
                block: case.block.clone(),
                q: case.q.clone(),
                ..case
            };
            for x in &mut moved.cache {
                x.drain(..13 * width);
            }
            moved.sight.first_key += 13;
            moved.sight.cache_rows -= 13;
            assert_bits(
                &moved.run_rows(&cpu, 0..time),
                &expected,
                &format!("{cpu:?} moved"),
            );
            // The same keys with the last rows in the block instead of the cache.
            let mut split = moved;
            let tail = |x: &mut Vec<f32>| x.split_off(x.len() - time * width);
            split.block = [tail(&mut split.cache[0]), tail(&mut split.cache[1])];
            split.sight.cache_rows -= time;
            split.sight.block_rows = time;
            assert_bits(
                &split.run_rows(&cpu, 0..time),
                &expected,
                &format!("{cpu:?} cache and block"),
            );
        }
    }

    #[test]
    fn queries_with_gaps_equal_queries_without() {
        let cpu = Cpu::new(2);
        let sight = Sight {
            first_query: 9,
            first_key: 0,
            cache_rows: 12,
            block_rows: 0,
            window: None,
            causal: true,
        };
        let case = Case::new(4, 2, 16, 3, sight);
        let queries = Heads {
            time: 3,
            heads: 4,
            dim: 16,
            time_stride: 150,
            head_stride: 35,
        };
        let mut q = vec![f32::NAN; queries.span()];
        for t in 0..3 {
            for h in 0..4 {
                q[queries.at(t, h)..][..16].copy_from_slice(&case.q[(t * 4 + h) * 16..][..16]);
            }
        }
        let visible: Vec<Visible> = (0..3).map(|t| sight.of_row(t)).collect();
        let mut out = vec![f32::NAN; 3 * 64];
        let cache = KeysValues {
            keys: &case.cache[0],
            values: &case.cache[1],
        };
        attention(
            &cpu,
            Attention {
                queries,
                kv_heads: 2,
                scale: 0.3,
            },
            &q,
            cache,
            KeysValues::EMPTY,
            &visible,
            &mut out,
        );
        assert_bits(&out, &case.run_rows(&cpu, 0..3), "gaps");
    }

    #[test]
    fn sight_follows_positions() {
        let sight = Sight {
            first_query: 10,
            first_key: 4,
            cache_rows: 8,
            block_rows: 0,
            window: Some(3),
            causal: true,
        };
        assert_eq!(
            sight.of_row(0),
            Visible {
                cache: 4..7,
                block: 0..0
            },
            "positions 8, 9, 10"
        );
        assert_eq!(sight.of_row(1).cache, 5..8);
        let block = Sight {
            first_query: 12,
            block_rows: 4,
            causal: false,
            ..sight
        };
        assert_eq!(
            block.of_row(1),
            Visible {
                cache: 7..8,
                block: 0..4
            },
            "position 11, then the whole block"
        );
        assert_eq!(
            Sight {
                window: Some(1),
                ..block
            }
            .of_row(2),
            Visible {
                cache: 8..8,
                block: 2..4
            }
        );
        assert_eq!(
            Sight {
                causal: true,
                window: None,
                ..block
            }
            .of_row(2),
            Visible {
                cache: 0..8,
                block: 0..3
            }
        );
    }
}
