// Attention of a few rows over one part of a long cache; attention_join.metal puts the parts together.
//
// A simdgroup takes a tile of the queries that share a head of keys (rows and grouped heads) and SPLIT
// consecutive positions. It goes through them 32 at a time: for scores each lane takes a key
// of its own, so that a softmax's sums meet once in 32 keys; for values each lane takes features of its own.
// A key or value is loaded once for all queries of the tile. Parts begin at multiples of SPLIT positions, whatever
// the number of rows, and what a row does not see changes none of its numbers.
const int lane = int(thread_index_in_simdgroup);
constexpr int SHARED = QUERY_HEADS / KV_HEADS;
constexpr int QUERIES = SHARED * ROWS;
constexpr int TILES = (QUERIES + TILE - 1) / TILE;
constexpr int PER_LANE = (HEAD_DIM + 31) / 32;
const int kv_head = int(thread_position_in_grid.y) / TILES;
const int first = int(thread_position_in_grid.y) % TILES * TILE;
const int part = int(thread_position_in_grid.z);
// Sizes: parts of the cache, its rows before the first part's begin, rows of its memory per head, rows before the
// first that is kept, the bits of the scale, then the visible range of each row.
const int parts = sizes[0];
const int capacity = sizes[2];
const float scale = as_type<float>(sizes[4]);
const bool beside = part == parts;
const device T* k_rows = beside ? block_k + kv_head * ROWS * HEAD_DIM : keys + (kv_head * capacity + sizes[3]) * HEAD_DIM;
const device T* v_rows = beside ? block_v + kv_head * ROWS * HEAD_DIM : values + (kv_head * capacity + sizes[3]) * HEAD_DIM;

// What each query of the tile sees, and what any of them sees of this part.
int starts[TILE];
int ends[TILE];
int low = 0x7fffffff;
int high = 0;
const int part_start = beside ? 0 : part * SPLIT - sizes[1];
const int part_end = beside ? ROWS : part_start + SPLIT;
for (int t = 0; t < TILE; t++) {
  const int row = (first + t) % ROWS;
  const bool exists = first + t < QUERIES;
  starts[t] = beside || !exists ? 0 : max(sizes[5 + 2 * row], part_start);
  ends[t] = !exists ? 0 : beside ? (BLOCK == 1 ? row + 1 : ROWS) : min(sizes[6 + 2 * row], part_end);
  if (starts[t] < ends[t]) {
    low = min(low, starts[t]);
    high = max(high, ends[t]);
  }
}

threadgroup float shares[TILE][32];
float best[TILE];
float total[TILE];
float sum[TILE][PER_LANE];
for (int t = 0; t < TILE; t++) {
  best[t] = DFLASH_LOWEST;
  total[t] = 0.0f;
  for (int j = 0; j < PER_LANE; j++) {
    sum[t][j] = 0.0f;
  }
}
for (int base = part_start; base < high; base += 32) {
  if (base + 32 <= low) {
    continue;
  }
  const int key = base + lane;
  const int at = min(max(key, low), high - 1) * HEAD_DIM;
  float score[TILE];
  for (int t = 0; t < TILE; t++) {
    score[t] = 0.0f;
  }
  for (int d = 0; d < HEAD_DIM; d++) {
    const float k = float(k_rows[at + d]);
    for (int t = 0; t < TILE; t++) {
      const int query = kv_head * QUERIES + min(first + t, QUERIES - 1);
      score[t] += k * float(queries[query * HEAD_DIM + d]);
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int t = 0; t < TILE; t++) {
    const bool seen = starts[t] <= key && key < ends[t];
    const float own = seen ? score[t] * scale : DFLASH_LOWEST;
    const float after = max(best[t], simd_max(own));
    const float share = seen ? exp(own - after) : 0.0f;
    const float kept = exp(best[t] - after);
    best[t] = after;
    total[t] = total[t] * kept + simd_sum(share);
    for (int j = 0; j < PER_LANE; j++) {
      sum[t][j] *= kept;
    }
    shares[t][lane] = share;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int n = max(low - base, 0); n < min(high - base, 32); n++) {
    for (int j = 0; j < PER_LANE; j++) {
      const int d = lane + 32 * j;
      const float v = d < HEAD_DIM ? float(v_rows[(base + n) * HEAD_DIM + d]) : 0.0f;
      for (int t = 0; t < TILE; t++) {
        sum[t][j] += shares[t][n] * v;
      }
    }
  }
}
for (int t = 0; t < TILE; t++) {
  if (first + t < QUERIES) {
    const int query = (part * KV_HEADS + kv_head) * QUERIES + first + t;
    for (int j = 0; j < PER_LANE; j++) {
      const int d = lane + 32 * j;
      if (d < HEAD_DIM) {
        sums[query * HEAD_DIM + d] = sum[t][j];
      }
    }
    if (lane == 0) {
      totals[2 * query] = best[t];
      totals[2 * query + 1] = total[t];
    }
  }
}
