//! Attention of a few rows over a long cache.

use super::{Argument, Element, Kernel, Launch, int};
use crate::DType;
use crate::backend::{BlockRule, KvShape, Visibility};

static PARTS: Kernel = Kernel {
    name: "dflash_attention",
    inputs: &[
        Argument::new("queries", Element::Of("T")),
        Argument::new("keys", Element::Of("T")),
        Argument::new("values", Element::Of("T")),
        Argument::new("block_k", Element::Of("T")),
        Argument::new("block_v", Element::Of("T")),
        Argument::new("sizes", Element::I32),
    ],
    outputs: &[
        Argument::new("sums", Element::F32),
        Argument::new("totals", Element::F32),
    ],
    types: &["T"],
    constants: &[
        "QUERY_HEADS",
        "KV_HEADS",
        "ROWS",
        "HEAD_DIM",
        "TILE",
        "SPLIT",
        "BLOCK",
    ],
    defines: &[],
    body: include_str!("attention.metal"),
};
static JOIN: Kernel = Kernel {
    name: "dflash_attention_join",
    inputs: &[
        Argument::new("sums", Element::F32),
        Argument::new("totals", Element::F32),
        Argument::new("sizes", Element::I32),
    ],
    outputs: &[Argument::new("y", Element::Of("T"))],
    types: &["T"],
    constants: &["QUERIES", "HEAD_DIM"],
    defines: &[],
    body: include_str!("attention_join.metal"),
};

/// Rows of one call at most.
const MAX_ROWS: usize = 16;
/// Positions of one part.
const SPLIT: usize = 256;
/// The largest head.
const MAX_HEAD_DIM: usize = 256;

/// One call of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Heads of keys and values.
    pub kv: KvShape,
    /// Heads of queries, a multiple of the heads of keys.
    pub query_heads: usize,
    /// Rows of queries, and of the block if there is one.
    pub rows: usize,
    /// Rows that the cache keeps.
    pub keys: usize,
    /// Rows before them in the cache's memory.
    pub front: usize,
    /// Rows of the cache's memory, per head.
    pub capacity: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// What rows see of the cache.
    pub visible: Visibility,
    /// What they see of a block beside it.
    pub block: Option<BlockRule>,
}

/// [`Backend::attention`](crate::backend::Backend::attention) in two launches: parts of the cache, and what
/// puts their results together.
///
/// The first reads queries `[1, query_heads, rows, head_dim]`, the memory of keys and of values `[1, kv_heads, capacity,
/// head_dim]` and the block's keys and values, for which anything of their format may stand if there is no
/// block; the second reads the first's outputs. `None` for sizes that they do not take, as more than 16 rows.
pub fn attention(shape: &AttentionShape, dtype: DType) -> Option<[Launch; 2]> {
    let &AttentionShape {
        kv: KvShape { heads, head_dim },
        query_heads,
        rows,
        keys,
        front,
        capacity,
        ..
    } = shape;
    let kept = front.checked_add(keys).is_some_and(|end| end <= capacity);
    let fits = (1..=MAX_ROWS).contains(&rows)
        && heads > 0
        && query_heads > 0
        && query_heads.is_multiple_of(heads)
        && (1..=MAX_HEAD_DIM).contains(&head_dim)
        && keys > 0
        && kept;
    if !fits {
        return None;
    }
    let offset = shape.visible.first_key % SPLIT;
    let mut ranges = Vec::with_capacity(2 * rows);
    let mut seen: Option<(usize, usize)> = None;
    for row in 0..rows {
        let range = shape.visible.range(row, keys);
        ranges.extend([int(range.start), int(range.end)]);
        if !range.is_empty() {
            let (start, end) = seen.unwrap_or((range.start, range.end));
            seen = Some((start.min(range.start), end.max(range.end)));
        }
    }
    // Parts from the first that any row sees to the last; counted from a position that is a multiple of SPLIT.
    let (before, parts) = seen.map_or((0, 0), |(start, end)| {
        let first = (start + offset) / SPLIT;
        (first, (end + offset).div_ceil(SPLIT) - first)
    });
    let all = parts + usize::from(shape.block.is_some());
    let queries = query_heads * rows;
    let largest = all.max(1).saturating_mul(queries).saturating_mul(head_dim);
    let memory = heads.saturating_mul(capacity).saturating_mul(head_dim);
    if all == 0 || i32::try_from(largest.max(memory)).is_err() {
        return None;
    }
    let tile = if head_dim > 128 { 4 } else { 8 }.min(queries / heads);
    let tiles = (queries / heads).div_ceil(tile);
    let block = match shape.block {
        None => 0,
        Some(BlockRule::Causal) => 1,
        Some(BlockRule::Bidirectional) => 2,
    };
    let mut sizes = vec![
        int(parts),
        int(offset) - int(before * SPLIT),
        int(capacity),
        int(front),
        shape.scale.to_bits().cast_signed(),
    ];
    sizes.extend(ranges);
    let parts = Launch {
        kernel: &PARTS,
        types: vec![dtype],
        constants: vec![
            int(query_heads),
            int(heads),
            int(rows),
            int(head_dim),
            int(tile),
            int(SPLIT),
            block,
        ],
        sizes,
        grid: [32, heads * tiles, all],
        group: [32, 1, 1],
        outputs: vec![vec![all, queries, head_dim], vec![all, queries, 2]],
    };
    let join = Launch {
        kernel: &JOIN,
        types: vec![dtype],
        constants: vec![int(queries), int(head_dim)],
        sizes: vec![int(all)],
        grid: [32, queries, 1],
        group: [32, 4, 1],
        outputs: vec![vec![1, query_heads, rows, head_dim]],
    };
    Some([parts, join])
}
