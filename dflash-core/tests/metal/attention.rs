//! Attention in parts: equal to the reference, every row equal to itself alone.

use dflash_core::DType;
use dflash_core::backend::reference::Reference;
use dflash_core::backend::{Backend, Block, BlockRule, KvShape, Visibility};
use dflash_core::metal::{AttentionShape, Launch, attention};

use super::host::{Buffer, Host, close, floats, random, tolerance};

/// Query heads, heads of keys, features, format.
const HEADS: [(usize, usize, usize, DType); 4] = [
    (4, 2, 64, DType::F32),
    (8, 2, 128, DType::Bf16),
    (4, 1, 256, DType::Bf16),
    (3, 3, 80, DType::F32),
];
const ROWS: [usize; 4] = [1, 2, 7, 16];
const BLOCKS: [BlockRule; 2] = [BlockRule::Causal, BlockRule::Bidirectional];
const BLOCK_ROWS: [usize; 2] = [5, 16];

/// Rows kept, rows of memory before and after them, the first row's position, the window.
const CACHES: [(usize, usize, usize, usize, Option<usize>); 6] = [
    (1, 0, 0, 0, None),
    (31, 2, 0, 0, None),
    (300, 5, 7, 0, None),
    (700, 0, 3, 1000, None),
    (600, 3, 1, 130, Some(100)),
    (40, 0, 5, 250, Some(8)),
];

struct Case {
    shape: AttentionShape,
    dtype: DType,
    q: Vec<f32>,
    /// Keys and values of the cache, `[kv_heads, keys, head_dim]`.
    kv: [Vec<f32>; 2],
    /// Those of the block, `[kv_heads, rows, head_dim]`.
    block: [Vec<f32>; 2],
}

fn shape(
    (query_heads, heads, head_dim, _): (usize, usize, usize, DType),
    rows: usize,
    (keys, front, back, first_key, window): (usize, usize, usize, usize, Option<usize>),
    block: Option<BlockRule>,
) -> AttentionShape {
    // Rows of a target are in the cache, the last of it; those of a draft's block come after it.
    let first_query = match block {
        None => first_key + keys.saturating_sub(rows),
        Some(_) => first_key + keys,
    };
    AttentionShape {
        kv: KvShape { heads, head_dim },
        query_heads,
        rows,
        keys,
        front,
        capacity: front + keys + back,
        scale: 0.3,
        visible: Visibility {
            first_key,
            first_query,
            window,
        },
        block,
    }
}

impl Case {
    fn new(shape: AttentionShape, dtype: DType) -> Self {
        let mut seed = (shape.keys * 7 + shape.rows) as u64;
        let KvShape { heads, head_dim } = shape.kv;
        let mut numbers = |count: usize| random(&mut seed, count * head_dim, dtype);
        Self {
            q: numbers(shape.query_heads * shape.rows),
            kv: [numbers(heads * shape.keys), numbers(heads * shape.keys)],
            block: [numbers(heads * shape.rows), numbers(heads * shape.rows)],
            shape,
            dtype,
        }
    }

    /// A cache's memory, full of NaN beside the rows that it keeps.
    fn memory(&self, rows: &[f32]) -> Buffer {
        let AttentionShape {
            kv: KvShape { head_dim, .. },
            keys,
            front,
            capacity,
            ..
        } = self.shape;
        let mut all = Vec::new();
        for head in rows.chunks_exact(keys * head_dim) {
            all.extend(vec![f32::NAN; front * head_dim]);
            all.extend(head);
            all.extend(vec![f32::NAN; (capacity - front - keys) * head_dim]);
        }
        floats(&all, self.dtype)
    }

    fn run(&self, host: &Host, launches: &[Launch; 2], q: &[f32]) -> Vec<f32> {
        let [k, v] = &self.kv;
        let block = if self.shape.block.is_some() {
            self.block.clone()
        } else {
            [vec![f32::NAN], vec![f32::NAN]]
        };
        let [block_k, block_v] = block.map(|numbers| floats(&numbers, self.dtype));
        let q = floats(q, self.dtype);
        let inputs = [q, self.memory(k), self.memory(v), block_k, block_v];
        let parts = host.run(&launches[0], &inputs);
        let parts: Vec<Buffer> = parts.iter().map(|p| floats(p, DType::F32)).collect();
        let results = host.run(&launches[1], &parts);
        let [y] = <[Vec<f32>; 1]>::try_from(results).expect("one output");
        y
    }

    fn expected(&self) -> Vec<f32> {
        let b = Reference::new();
        let KvShape { heads, head_dim } = self.shape.kv;
        let tensor = |numbers: &[f32], heads: usize| {
            let rows = numbers.len() / heads / head_dim;
            b.upload(numbers, &[1, heads, rows, head_dim], DType::F32)
                .expect("as many numbers")
        };
        let mut kv = b.kv_new(self.shape.kv).expect("a cache");
        b.kv_append(
            &mut kv,
            &tensor(&self.kv[0], heads),
            &tensor(&self.kv[1], heads),
        )
        .expect("rows");
        let [k, v] = [0, 1].map(|i: usize| tensor(&self.block[i], heads));
        let block = self.shape.block.map(|rule| Block { k: &k, v: &v, rule });
        let q = tensor(&self.q, self.shape.query_heads);
        let y = b
            .attention(&q, &kv, block, self.shape.scale, &self.shape.visible)
            .expect("sizes that fit");
        b.read(&y).expect("numbers")
    }

    /// Row `row` of all heads of `[heads, rows, head_dim]`.
    fn row<'a>(&self, all: &'a [f32], row: usize) -> Vec<&'a f32> {
        let (rows, dim) = (self.shape.rows, self.shape.kv.head_dim);
        let heads = all.chunks_exact(rows * dim);
        heads.flat_map(|head| &head[row * dim..][..dim]).collect()
    }
}

fn launches(shape: &AttentionShape, dtype: DType) -> [Launch; 2] {
    attention(shape, dtype).expect("sizes that fit")
}

#[test]
fn rows_of_a_cache_equal_the_reference_and_themselves_alone() {
    let mut needed = Vec::new();
    for heads in HEADS {
        needed.extend(ROWS.map(|rows| launches(&shape(heads, rows, CACHES[1], None), heads.3)));
    }
    let Some(host) = Host::build(&needed.concat()) else {
        return;
    };
    for heads in HEADS {
        for rows in ROWS {
            for cache in CACHES {
                let case = Case::new(shape(heads, rows, cache, None), heads.3);
                let what = format!("{:?}, {}", case.shape, heads.3);
                let y = case.run(&host, &launches(&case.shape, heads.3), &case.q);
                close(&what, &y, &case.expected(), tolerance(heads.3));
                for row in [0, rows / 2, rows - 1] {
                    let mut alone = AttentionShape {
                        rows: 1,
                        ..case.shape
                    };
                    alone.visible.first_query += row;
                    let q: Vec<f32> = case.row(&case.q, row).into_iter().copied().collect();
                    let own = case.run(&host, &launches(&alone, heads.3), &q);
                    assert_eq!(own.iter().collect::<Vec<_>>(), case.row(&y, row), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_block_beside_the_cache_is_seen_by_its_rule() {
    let mut needed = Vec::new();
    for heads in &HEADS[..2] {
        for rule in BLOCKS {
            needed.extend(
                BLOCK_ROWS
                    .map(|rows| launches(&shape(*heads, rows, CACHES[1], Some(rule)), heads.3)),
            );
        }
    }
    let Some(host) = Host::build(&needed.concat()) else {
        return;
    };
    for heads in &HEADS[..2] {
        for (rule, rows) in BLOCKS.into_iter().flat_map(|b| BLOCK_ROWS.map(|r| (b, r))) {
            // In the last, the window has left the cache behind: only the block is seen.
            for (cache, further) in CACHES.map(|c| (c, 0)).into_iter().chain([(CACHES[5], 30)]) {
                let mut shape = shape(*heads, rows, cache, Some(rule));
                shape.visible.first_query += further;
                let case = Case::new(shape, heads.3);
                let what = format!("{:?}, {}", case.shape, heads.3);
                let y = case.run(&host, &launches(&case.shape, heads.3), &case.q);
                close(&what, &y, &case.expected(), tolerance(heads.3));
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let heads = HEADS[0];
    let mut shape = shape(heads, 7, CACHES[5], None);
    // Position 295 sees the last two of positions 250 to 289, its successor one, the others none.
    shape.visible.first_query = 295;
    let Some(host) = Host::build(&launches(&shape, heads.3)) else {
        return;
    };
    let case = Case::new(shape, heads.3);
    let y = case.run(&host, &launches(&shape, heads.3), &case.q);
    close("blind rows", &y, &case.expected(), tolerance(heads.3));
    assert!(case.row(&y, 1).into_iter().any(|x| *x != 0.0));
    for row in 2..7 {
        assert!(case.row(&y, row).into_iter().all(|x| *x == 0.0), "{row}");
    }
}

#[test]
fn attention_that_the_kernels_do_not_take_is_left_to_others() {
    let good = shape(HEADS[1], 8, CACHES[2], None);
    assert!(attention(&good, DType::Bf16).is_some());
    let wide = KvShape {
        heads: 2,
        head_dim: 512,
    };
    let mut blind = good;
    blind.visible.window = Some(8);
    blind.visible.first_query += 1000;
    for bad in [
        AttentionShape { rows: 17, ..good },
        AttentionShape { kv: wide, ..good },
        AttentionShape {
            query_heads: 3,
            ..good
        },
        AttentionShape { keys: 0, ..good },
        AttentionShape {
            capacity: 100,
            ..good
        },
        blind,
    ] {
        assert!(attention(&bad, DType::Bf16).is_none(), "{bad:?}");
    }
}
