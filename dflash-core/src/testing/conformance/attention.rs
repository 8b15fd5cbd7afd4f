//! Attention, and the storage of keys and values that it reads.

use super::Failure;
use super::judge::{Judge, attempt, same};
use super::make::{Layout, Maker};
use crate::Result;
use crate::backend::{Backend, Block, BlockRule, KvShape, Visibility};

/// One case of attention.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// Query heads per key head.
    ratio: usize,
    kv_heads: usize,
    head_dim: usize,
    rows: usize,
    /// Cached rows, those of the queries included when there is no block.
    keys: usize,
    first_key: usize,
    window: Option<usize>,
    block: Option<BlockRule>,
    layout: Layout,
    scale: f32,
}

impl Case {
    const PLAIN: Self = Self {
        ratio: 2,
        kv_heads: 2,
        head_dim: 16,
        rows: 4,
        keys: 20,
        first_key: 0,
        window: None,
        block: None,
        layout: Layout::Contiguous,
        scale: 0.3,
    };

    fn name(&self) -> String {
        let Self {
            ratio,
            kv_heads,
            head_dim,
            rows,
            keys,
            first_key,
            ..
        } = self;
        let window = self
            .window
            .map_or(String::new(), |w| format!(", window {w}"));
        let block = self
            .block
            .map_or(String::new(), |r| format!(", {r:?} block"));
        let heads = ratio * kv_heads;
        format!(
            "{heads} heads on {kv_heads}, {head_dim} features, {rows} rows, {keys} keys from {first_key}{window}{block}, {:?} input",
            self.layout
        )
    }

    fn visible(&self) -> Visibility {
        // Without a block the queries' own keys are the cache's last.
        let before = if self.block.is_some() {
            self.keys
        } else {
            self.keys - self.rows
        };
        Visibility {
            first_key: self.first_key,
            first_query: self.first_key + before,
            window: self.window,
        }
    }

    fn run<B: Backend>(&self, b: &B, make: &mut Maker<'_, B>) -> Result<Vec<B::Tensor>> {
        let Self {
            ratio,
            kv_heads,
            head_dim,
            rows,
            keys,
            layout,
            ..
        } = *self;
        let mut kv = b.kv_new(KvShape {
            heads: kv_heads,
            head_dim,
        })?;
        if keys > 0 {
            let shape = [1, kv_heads, keys, head_dim];
            let (k, v) = (make.tensor(&shape, layout)?, make.tensor(&shape, layout)?);
            b.kv_append(&mut kv, &k, &v)?;
        }
        let q = make.tensor(&[1, ratio * kv_heads, rows, head_dim], layout)?;
        let shape = [1, kv_heads, rows, head_dim];
        let (k, v) = (make.tensor(&shape, layout)?, make.tensor(&shape, layout)?);
        let block = self.block.map(|rule| Block { k: &k, v: &v, rule });
        Ok(vec![b.attention(
            &q,
            &kv,
            block,
            self.scale,
            &self.visible(),
        )?])
    }
}

/// Grouped heads, windows and their edges, blocks beside an empty and a filled cache.
pub fn attention<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut cases = Vec::new();
    for ratio in 1..=4 {
        for (kv_heads, head_dim, rows, keys) in [
            (1, 8, 1, 1),
            (2, 16, 1, 40),
            (2, 64, 16, 16),
            (3, 32, 16, 150),
            (1, 128, 5, 33),
        ] {
            cases.push(Case {
                ratio,
                kv_heads,
                head_dim,
                rows,
                keys,
                ..Case::PLAIN
            });
        }
    }
    // Heads of published hybrids: 24 on 4 of 256 features.
    for (rows, keys, block) in [
        (1, 70, None),
        (16, 40, None),
        (16, 40, Some(BlockRule::Bidirectional)),
    ] {
        cases.push(Case {
            ratio: 6,
            kv_heads: 4,
            head_dim: 256,
            rows,
            keys,
            block,
            scale: 0.0625,
            ..Case::PLAIN
        });
    }
    for rule in [BlockRule::Causal, BlockRule::Bidirectional] {
        for (rows, keys) in [(1, 0), (16, 0), (1, 30), (16, 30), (7, 129)] {
            for window in [None, Some(16), Some(20)] {
                cases.push(Case {
                    rows,
                    keys,
                    window,
                    block: Some(rule),
                    ..Case::PLAIN
                });
            }
        }
    }
    for window in [1, 3, 4, 5, 19, 20, 21] {
        for first_key in [0, 100] {
            cases.push(Case {
                window: Some(window),
                first_key,
                ..Case::PLAIN
            });
            cases.push(Case {
                window: Some(window),
                first_key,
                rows: 1,
                ..Case::PLAIN
            });
        }
    }
    for layout in Layout::ALL {
        for block in [None, Some(BlockRule::Bidirectional)] {
            cases.push(Case {
                layout,
                block,
                ..Case::PLAIN
            });
        }
    }
    let mut j = Judge::new(backend);
    for case in cases {
        same!(j, "attention", case.name(), |b, make| case
            .run(b, &mut make));
    }
    same!(j, "attention", "a query that is not a number", |b, make| {
        let mut kv = b.kv_new(KvShape {
            heads: 1,
            head_dim: 8,
        })?;
        b.kv_append(
            &mut kv,
            &make.plain(&[1, 1, 6, 8])?,
            &make.plain(&[1, 1, 6, 8])?,
        )?;
        let mut numbers = make.numbers(3 * 8);
        numbers[8] = f32::NAN;
        let visible = Visibility {
            first_key: 0,
            first_query: 3,
            window: None,
        };
        Ok(vec![b.attention(
            &make.given(&numbers, &[1, 1, 3, 8])?,
            &kv,
            None,
            1.0,
            &visible,
        )?])
    });
    same!(
        j,
        "attention",
        "heads and rows exchanged, as projections leave them",
        |b, make| {
            let mut kv = b.kv_new(KvShape {
                heads: 2,
                head_dim: 8,
            })?;
            let mut split = |heads: usize| {
                b.swap_axes(
                    &b.reshape(&make.plain(&[1, 5, heads * 8])?, &[1, 5, heads, 8])?,
                    1,
                    2,
                )
            };
            let (q, k, v) = (split(4)?, split(2)?, split(2)?);
            b.kv_append(&mut kv, &k, &v)?;
            let visible = Visibility {
                first_key: 0,
                first_query: 0,
                window: None,
            };
            Ok(vec![b.attention(&q, &kv, None, 1.0, &visible)?])
        }
    );
    j.failures
}

const SHAPE: KvShape = KvShape {
    heads: 2,
    head_dim: 8,
};

fn append<B: Backend>(b: &B, make: &mut Maker<'_, B>, kv: &mut B::Kv, rows: usize) -> Result<()> {
    let shape = [1, SHAPE.heads, rows, SHAPE.head_dim];
    b.kv_append(kv, &make.plain(&shape)?, &make.plain(&shape)?)
}

/// What one query sees of all rows.
fn look<B: Backend>(b: &B, make: &mut Maker<'_, B>, kv: &B::Kv, rows: usize) -> Result<B::Tensor> {
    let q = make.plain(&[1, SHAPE.heads, 1, SHAPE.head_dim])?;
    b.attention(
        &q,
        kv,
        None,
        1.0,
        &Visibility {
            first_key: 0,
            first_query: rows.max(1) - 1,
            window: None,
        },
    )
}

/// Appending, keeping a range, forking, refusing, and the memory that a sliding window takes.
pub fn cache<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    // Rows to append, then the range that is kept.
    let histories: [&[(usize, std::ops::Range<usize>)]; 5] = [
        &[(3, 0..3), (1, 0..4), (16, 0..9), (16, 0..25)],
        &[(5, 0..0), (2, 0..2)],
        &[(20, 13..20), (16, 4..11), (16, 10..23), (1, 1..14)],
        &[(300, 0..290), (300, 10..580), (7, 500..577), (100, 0..177)],
        &[(70, 69..70), (70, 70..71), (1, 0..2)],
    ];
    for history in histories {
        same!(
            j,
            "kv_keep",
            format!("appended and kept {history:?}"),
            |b, make| {
                let mut kv = b.kv_new(SHAPE)?;
                let (mut rows, mut seen) = (0, Vec::new());
                for (added, kept) in history {
                    append(b, &mut make, &mut kv, *added)?;
                    rows += added;
                    seen.push(look(b, &mut make, &kv, rows)?);
                    b.kv_keep(&mut kv, kept.clone());
                    rows = kept.len();
                    if rows > 0 {
                        seen.push(look(b, &mut make, &kv, rows)?);
                    }
                }
                Ok(seen)
            }
        );
    }
    same!(
        j,
        "kv_fork",
        "both sides appended to afterwards",
        |b, make| {
            let mut kv = b.kv_new(SHAPE)?;
            append(b, &mut make, &mut kv, 9)?;
            b.kv_keep(&mut kv, 2..7);
            let mut fork = b.kv_fork(&kv)?;
            append(b, &mut make, &mut kv, 4)?;
            let untouched = look(b, &mut make, &fork, 5)?;
            append(b, &mut make, &mut fork, 4)?;
            Ok(vec![
                untouched,
                look(b, &mut make, &kv, 9)?,
                look(b, &mut make, &fork, 9)?,
            ])
        }
    );
    let mut make = j.maker();
    let refused = attempt(|| {
        let mut kv = backend.kv_new(SHAPE)?;
        append(backend, &mut make, &mut kv, 3)?;
        let q = make.plain(&[1, 2, 1, 8])?;
        let look = |kv: &B::Kv| {
            let visible = Visibility {
                first_key: 0,
                first_query: 9,
                window: None,
            };
            backend.read(&backend.attention(&q, kv, None, 1.0, &visible)?)
        };
        let before = look(&kv)?;
        let (good, bad) = (make.plain(&[1, 2, 2, 8])?, make.plain(&[1, 3, 2, 8])?);
        let errors = backend.kv_append(&mut kv, &bad, &bad).is_err()
            && backend.kv_append(&mut kv, &good, &bad).is_err();
        Ok(errors && look(&kv)? == before)
    });
    j.require(
        "kv_append",
        "three heads into a cache of two",
        refused,
        "rows that do not fit must be refused, and nothing added",
    );
    let mut make = j.maker();
    let bounded = attempt(|| {
        let mut kv = backend.kv_new(SHAPE)?;
        let row = 2 * SHAPE.heads * SHAPE.head_dim * backend.dtype().size();
        let mut largest = 0;
        append(backend, &mut make, &mut kv, 63)?;
        for _ in 0..300 {
            append(backend, &mut make, &mut kv, 16)?;
            backend.kv_keep(&mut kv, 16..79);
            largest = largest.max(backend.kv_bytes(&kv));
        }
        Ok((63 * row..=(2 * 79 + 512) * row).contains(&largest))
    });
    j.require(
        "kv_bytes",
        "4800 rows through a window of 63",
        bounded,
        "a window's memory must stay near twice its rows",
    );
    j.failures
}
