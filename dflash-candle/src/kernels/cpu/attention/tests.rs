use super::*;
use crate::kernels::cpu::Sight;
use crate::kernels::cpu::testing::{Numbers, assert_bits, assert_close, contexts, single};

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
