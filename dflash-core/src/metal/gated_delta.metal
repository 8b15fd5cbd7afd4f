// The gated delta rule over a block, one row after another (Gated Delta Networks, arXiv 2412.06464, equation 10).
//
// A simdgroup carries FEATURES rows of one head's state through the block in registers: the lanes
// share the key features, so a prediction is one sum over the simdgroup. Rows are serial and a row's
// arithmetic does not depend on their number: a block gives the bits of single steps, and replaying the first
// rows of a recorded block gives the bits of having run those alone.
const int lane = int(thread_index_in_simdgroup);
const int head = int(thread_position_in_grid.z);
const int first = int(thread_position_in_grid.y) * FEATURES;
const int rows = sizes[0];
constexpr int PER_LANE = (KEY_DIM + 31) / 32;
constexpr int KEYS = KEY_HEADS * KEY_DIM;
constexpr int CHANNELS = 2 * KEYS + VALUE_HEADS * VALUE_DIM;
const int key_start = head / (VALUE_HEADS / KEY_HEADS) * KEY_DIM;

float s[FEATURES][PER_LANE];
for (int f = 0; f < FEATURES; f++) {
  for (int j = 0; j < PER_LANE; j++) {
    const int d = lane + 32 * j;
    s[f][j] = (first + f < VALUE_DIM && d < KEY_DIM) ? state[(head * VALUE_DIM + first + f) * KEY_DIM + d] : 0.0f;
  }
}
const float rate = exp(a_log[head]);
const float bias = dt_bias[head];
for (int t = 0; t < rows; t++) {
  const int row = t * CHANNELS;
  float k[PER_LANE];
  float k_square = 0.0f;
#ifndef DFLASH_STATE_ONLY
  float q[PER_LANE];
  float q_square = 0.0f;
#endif
  for (int j = 0; j < PER_LANE; j++) {
    const int d = lane + 32 * j;
    k[j] = d < KEY_DIM ? float(mixed[row + KEYS + key_start + d]) : 0.0f;
    k_square += k[j] * k[j];
#ifndef DFLASH_STATE_ONLY
    q[j] = d < KEY_DIM ? float(mixed[row + key_start + d]) : 0.0f;
    q_square += q[j] * q[j];
#endif
  }
  const float k_unit = 1.0f / sqrt(simd_sum(k_square) + 1e-6f);
#ifndef DFLASH_STATE_ONLY
  const float q_unit = 1.0f / sqrt((simd_sum(q_square) + 1e-6f) * float(KEY_DIM));
#endif
  for (int j = 0; j < PER_LANE; j++) {
    k[j] *= k_unit;
#ifndef DFLASH_STATE_ONLY
    q[j] *= q_unit;
#endif
  }
  const float keep = exp(-rate * dflash_softplus(float(decay[t * VALUE_HEADS + head]) + bias));
  const float beta = dflash_sigmoid(float(strength[t * VALUE_HEADS + head]));
  for (int f = 0; f < FEATURES; f++) {
    float predicted = 0.0f;
    for (int j = 0; j < PER_LANE; j++) {
      s[f][j] *= keep;
      predicted += s[f][j] * k[j];
    }
    predicted = simd_sum(predicted);
    const int value = head * VALUE_DIM + min(first + f, VALUE_DIM - 1);
    const float change = beta * (float(mixed[row + 2 * KEYS + value]) - predicted);
#ifdef DFLASH_STATE_ONLY
    for (int j = 0; j < PER_LANE; j++) {
      s[f][j] += change * k[j];
    }
#else
    float read = 0.0f;
    for (int j = 0; j < PER_LANE; j++) {
      s[f][j] += change * k[j];
      read += s[f][j] * q[j];
    }
    read = simd_sum(read);
    if (lane == 0 && first + f < VALUE_DIM) {
      y[t * VALUE_HEADS * VALUE_DIM + value] = T(read);
    }
#endif
  }
}
for (int f = 0; f < FEATURES; f++) {
  for (int j = 0; j < PER_LANE; j++) {
    const int d = lane + 32 * j;
    if (first + f < VALUE_DIM && d < KEY_DIM) {
      after[(head * VALUE_DIM + first + f) * KEY_DIM + d] = s[f][j];
    }
  }
}
