// Puts the parts of attention.metal together: a simdgroup per query, parts in their order.
const int lane = int(thread_index_in_simdgroup);
const int query = int(thread_position_in_grid.y);
const int parts = sizes[0];
constexpr int PER_LANE = (HEAD_DIM + 31) / 32;

float best = DFLASH_LOWEST;
for (int p = 0; p < parts; p++) {
  best = max(best, totals[2 * (p * QUERIES + query)]);
}
float total = 0.0f;
float sum[PER_LANE];
for (int j = 0; j < PER_LANE; j++) {
  sum[j] = 0.0f;
}
for (int p = 0; p < parts; p++) {
  const int at = p * QUERIES + query;
  const float share = exp(totals[2 * at] - best);
  total += share * totals[2 * at + 1];
  for (int j = 0; j < PER_LANE; j++) {
    const int d = lane + 32 * j;
    sum[j] += d < HEAD_DIM ? share * sums[at * HEAD_DIM + d] : 0.0f;
  }
}
for (int j = 0; j < PER_LANE; j++) {
  const int d = lane + 32 * j;
  if (d < HEAD_DIM) {
    // A row that sees nothing is zero.
    y[query * HEAD_DIM + d] = T(total == 0.0f ? 0.0f : sum[j] / total);
  }
}
