// Functions that the kernels share. Sums and states are float32, whatever the activations' format.

// Stands for "nothing seen yet" among scores: finite, because compilers that assume finite numbers
// may break comparisons with infinities.
#define DFLASH_LOWEST -3.0e38f

inline float dflash_softplus(float x) {
  return x > 20.0f ? x : log(1.0f + exp(x));
}

inline float dflash_sigmoid(float x) {
  return 1.0f / (1.0f + exp(-x));
}
