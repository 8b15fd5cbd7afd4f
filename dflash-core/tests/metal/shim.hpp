// What the kernels use of Metal, for a host: every thread is a fibre; fibres of a simdgroup meet in
// its sums and barriers. A kernel whose lanes do not all reach a meeting point is reported.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

using uint = unsigned int;
using std::exp;
using std::log;
using std::max;
using std::min;
using std::sqrt;
#define device
#define constant
#define threadgroup static

struct uint3 {
  uint x, y, z;
};

struct bfloat {
  uint16_t bits;
  bfloat() = default;
  explicit bfloat(float x) {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    bits = (wide & 0x7fffffff) > 0x7f800000
               ? uint16_t(0x7fc0)
               : uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
};

template <typename To, typename From> To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To y;
  std::memcpy(&y, &x, sizeof(To));
  return y;
}

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

namespace shim {

constexpr uint LANES = 32;
constexpr size_t STACK = 256 * 1024;

// A place where the lanes of a simdgroup meet. A lane cannot be two meetings ahead of another, so two
// sets of values are enough.
struct Simdgroup {
  uint lanes = 0, arrived = 0, meeting = 0;
  float values[2][LANES];
};

struct Fibre {
  ucontext_t start;
  jmp_buf here;
  bool started = false, done = false;
  uint3 in_grid;
  uint lane;
  Simdgroup *simdgroup;
  std::unique_ptr<char[]> stack{new char[STACK]};
};

using Body = void (*)(void **);

Fibre *current;
jmp_buf scheduler;
ucontext_t main_context;
Body body;
void **buffers;
uint64_t progress;

[[noreturn]] inline void fail(const char *what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(3);
}

__attribute__((noinline)) inline void pause() {
  if (!_setjmp(current->here)) _longjmp(scheduler, 1);
}

inline void entry() {
  body(buffers);
  current->done = true;
  progress++;
  _longjmp(scheduler, 1);
}

// Waits for all lanes; their values, in the order of lanes.
inline const float *meet(float x) {
  Simdgroup &group = *current->simdgroup;
  const uint meeting = group.meeting;
  float *values = group.values[meeting & 1];
  values[current->lane] = x;
  if (++group.arrived == group.lanes) {
    group.arrived = 0;
    group.meeting++;
    progress++;
  }
  while (group.meeting == meeting) pause();
  return values;
}

inline void resume(Fibre &fibre) {
  current = &fibre;
  if (_setjmp(scheduler)) return;
  if (fibre.started) _longjmp(fibre.here, 1);
  fibre.started = true;
  getcontext(&fibre.start);
  fibre.start.uc_stack.ss_sp = fibre.stack.get();
  fibre.start.uc_stack.ss_size = STACK;
  fibre.start.uc_link = nullptr;
  makecontext(&fibre.start, entry, 0);
  swapcontext(&main_context, &fibre.start);
}

inline void run(Body kernel, void **arguments, const uint grid[3], const uint group[3]) {
  body = kernel;
  buffers = arguments;
  static std::vector<Fibre> fibres;
  const uint threads = group[0] * group[1] * group[2];
  if (group[0] != LANES) fail("a row of a group is one simdgroup");
  if (fibres.size() < threads) fibres.resize(threads);
  std::vector<Simdgroup> simdgroups(threads / LANES);
  for (uint gz = 0; gz < grid[2]; gz += group[2])
    for (uint gy = 0; gy < grid[1]; gy += group[1])
      for (uint gx = 0; gx < grid[0]; gx += group[0]) {
        for (auto &simdgroup : simdgroups) simdgroup = Simdgroup();
        uint count = 0;
        for (uint i = 0; i < threads; i++) {
          const uint3 at = {gx + i % group[0], gy + i / group[0] % group[1], gz + i / group[0] / group[1]};
          if (at.x >= grid[0] || at.y >= grid[1] || at.z >= grid[2]) continue;
          Fibre &fibre = fibres[count];
          fibre.started = fibre.done = false;
          fibre.in_grid = at;
          fibre.lane = i % LANES;
          fibre.simdgroup = &simdgroups[i / LANES];
          fibre.simdgroup->lanes++;
          count++;
        }
        for (uint left = count; left > 0;) {
          const uint64_t before = progress;
          left = 0;
          for (uint i = 0; i < count; i++) {
            if (!fibres[i].done) resume(fibres[i]);
            left += !fibres[i].done;
          }
          if (left > 0 && progress == before) fail("lanes wait for lanes that never come");
        }
      }
}

// Memory that ends at a page that cannot be touched, so that reading past the end is a fault.
inline void *guarded(size_t bytes) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  const size_t pages = (bytes + page - 1) / page * page;
  char *memory = (char *)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory + pages, page, PROT_NONE)) fail("no memory");
  std::memset(memory, 0xff, pages);
  return memory + pages - bytes;
}

inline uint number() {
  uint x;
  if (std::fread(&x, 4, 1, stdin) != 1) fail("the request ends early");
  return x;
}

// Reads a request (kernel, grid, group, inputs, sizes of outputs), runs it and writes the outputs.
inline int serve(const Body *kernels, uint count) {
  const uint index = number();
  if (index >= count) fail("no such kernel");
  uint grid[3], group[3];
  for (uint &size : grid) size = number();
  for (uint &size : group) size = number();
  std::vector<void *> arguments;
  for (uint inputs = number(); inputs > 0; inputs--) {
    const uint bytes = number();
    void *memory = guarded(bytes);
    if (bytes && std::fread(memory, bytes, 1, stdin) != 1) fail("the request ends early");
    arguments.push_back(memory);
  }
  std::vector<std::pair<void *, size_t>> outputs;
  for (uint left = number(); left > 0; left--) {
    const uint bytes = number();
    outputs.push_back({guarded(bytes), bytes});
    arguments.push_back(outputs.back().first);
  }
  run(kernels[index], arguments.data(), grid, group);
  for (auto &output : outputs) std::fwrite(output.first, 1, output.second, stdout);
  return std::fflush(stdout) ? 3 : 0;
}

} // namespace shim

// Sums by halves, as a simdgroup's shuffles do.
inline float simd_sum(float x) {
  const float *lanes = shim::meet(x);
  float sums[shim::LANES];
  std::copy(lanes, lanes + shim::LANES, sums);
  for (uint half = shim::LANES / 2; half > 0; half /= 2)
    for (uint i = 0; i < half; i++) sums[i] += sums[i + half];
  return sums[0];
}

inline float simd_max(float x) {
  const float *lanes = shim::meet(x);
  return *std::max_element(lanes, lanes + shim::LANES);
}

inline void simdgroup_barrier(mem_flags) { shim::meet(0.0f); }
