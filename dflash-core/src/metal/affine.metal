// Products of a few rows with a packed matrix: weight = code * scale + bias, per group of inputs.
//
// A simdgroup makes OUTPUTS columns of all rows. Its lanes take turns along the inputs, eight codes at
// a time: codes are unpacked once and multiplied with every row, so that reading and unpacking the matrix,
// which is what a product of one row costs, is paid once. The order of a sum depends on the number of inputs only.
const int lane = int(thread_index_in_simdgroup);
const int first = int(thread_position_in_grid.y) * OUTPUTS;
const int inputs = sizes[0];
const int outputs = sizes[1];
constexpr int PER_WORD = 32 / BITS;
constexpr int WORDS = 8 / PER_WORD;
constexpr uint CODE = (1u << BITS) - 1u;

float sums[OUTPUTS][ROWS];
for (int o = 0; o < OUTPUTS; o++) {
  for (int r = 0; r < ROWS; r++) {
    sums[o][r] = 0.0f;
  }
}
for (int eight = lane; eight < inputs / 8; eight += 32) {
  float w[OUTPUTS][8];
  for (int o = 0; o < OUTPUTS; o++) {
    const int row = min(first + o, outputs - 1);
    const int group = row * (inputs / GROUP) + eight * 8 / GROUP;
    const float scale = float(scales[group]);
    const float bias = float(biases[group]);
    for (int n = 0; n < WORDS; n++) {
      const uint word = codes[(row * (inputs / 8) + eight) * WORDS + n];
      for (int i = 0; i < PER_WORD; i++) {
        w[o][n * PER_WORD + i] = float((word >> (BITS * i)) & CODE) * scale + bias;
      }
    }
  }
  for (int r = 0; r < ROWS; r++) {
    float a[8];
    for (int i = 0; i < 8; i++) {
      a[i] = float(x[r * inputs + eight * 8 + i]);
    }
    for (int o = 0; o < OUTPUTS; o++) {
      for (int i = 0; i < 8; i++) {
        sums[o][r] += w[o][i] * a[i];
      }
    }
  }
}
for (int o = 0; o < OUTPUTS; o++) {
  for (int r = 0; r < ROWS; r++) {
    const float total = simd_sum(sums[o][r]);
    if (lane == 0 && first + o < outputs) {
      y[r * outputs + first + o] = T(total);
    }
  }
}
