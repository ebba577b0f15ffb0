// The programming model of CUDA on one CPU thread: runs the source of our kernels where there is no GPU, for tests.
//
// Every thread of a block is a fiber with a stack of its own. Fibers run one at a time until they reach a barrier or a
// shuffle, in an order drawn anew each time (seeded), and warps run ahead of one another as far as barriers let them,
// so that a missing barrier shows as a wrong result. What CUDA leaves undefined is an Error here: a barrier or shuffle
// that some threads of the block (warp) do not reach or reach at another line, unaligned vector access, launches beyond
// the limits. Blocks run one after the other, in random order too; shared memory starts as NaN patterns. What it does
// not show: timing, memory ordering between blocks, and the last bits of the GPU's own exp, log and division.
//
// On a stream of the host kernels run when they are launched. On a DeferredStream they are queued with copies of their
// arguments, as on a GPU, and may be recorded and queued again.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/base/core/dtype.h"
#include "engine/base/ops/ops.h"
#include "tests/emulation/deferred_stream.h"

#define TW_KERNEL inline
#define TW_DEVICE inline
#define TW_GRID_CONSTANT
#define TW_UNROLL
#define TW_UNROLL_BY(n)
#define TW_SHARED_ARRAY(Type, name, count) \
  static char name##_site;                 \
  Type* const name = static_cast<Type*>(::thinwire::emulation::shared_array(&name##_site, sizeof(Type) * (count)))
#define TW_DYNAMIC_SHARED(name) unsigned char* const name = ::thinwire::emulation::dynamic_shared()
#define __syncthreads() ::thinwire::emulation::block_barrier(__LINE__)
#define __launch_bounds__(...)

namespace thinwire {

constexpr int kWarp = 32;

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

namespace emulation {

// Position of the fiber that runs, and the size of its launch.
extern thread_local Index3 thread_index, block_index, block_size, grid_size;

void* shared_array(const void* site, size_t bytes);
unsigned char* dynamic_shared();
void block_barrier(int line);
// Deposits a word and returns that of lane `from`, when all lanes of the warp have called with the same `site`.
uint64_t exchange(uint64_t word, int from, int site);

// Calls body() once per thread of the grid.
void run_grid(const char* what, int64_t grid_x, int64_t grid_y, int threads, size_t shared,
              const std::function<void()>& body);

// Kernels launched since the start, for tests of how an op is cut up.
int64_t launches();

}  // namespace emulation

#define threadIdx ::thinwire::emulation::thread_index
#define blockIdx ::thinwire::emulation::block_index
#define blockDim ::thinwire::emulation::block_size
#define gridDim ::thinwire::emulation::grid_size

template <typename T>
T shuffle(T value, int from, int site) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = emulation::exchange(word, from, site);
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <typename T>
T shuffle_xor(T value, int lanes) {
  return shuffle(value, static_cast<int>(threadIdx.x % kWarp) ^ lanes, lanes);
}
template <typename T>
T shuffle_from(T value, int lane) {
  return shuffle(value, lane, kWarp);
}
inline unsigned warp_max(unsigned value) {
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const unsigned other = shuffle_xor(value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

inline void atomic_or(unsigned* word, unsigned bits) {
  *word |= bits;
}
inline void atomic_max(unsigned* word, unsigned value) {
  *word = *word < value ? value : *word;
}

template <int kBytes>
struct Raw {
  unsigned char v[kBytes];
};
template <int kBytes>
Raw<kBytes> load_raw(const void* p) {
  TW_CHECK(reinterpret_cast<uintptr_t>(p) % (kBytes < 16 ? kBytes : 16) == 0, "unaligned load of ", kBytes, " bytes");
  Raw<kBytes> r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
template <int kBytes>
void store_raw(void* p, const Raw<kBytes>& r) {
  TW_CHECK(reinterpret_cast<uintptr_t>(p) % (kBytes < 16 ? kBytes : 16) == 0, "unaligned store of ", kBytes, " bytes");
  std::memcpy(p, &r, sizeof r);
}

inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t picks) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(bytes >> (picks >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  return word;
}
inline float float_of_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline float half_to_float(uint16_t bits) {
  return to_float(Fp16{bits});
}
inline uint16_t float_to_half(float v) {
  return to_fp16(v).bits;
}
inline uint16_t float_to_bf16(float v) {
  return to_bf16(v).bits;
}

inline uint32_t pair_of_bf16(float low, float high) {
  return float_to_bf16(low) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
}
inline uint32_t pair_of_half(float low, float high) {
  return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

inline float fast_exp2(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float fast_divide(float a, float b) {
  return fabsf(b) > 0x1p126f && !std::isinf(a) && !std::isnan(a) ? 0.0f : a / b;
}

struct Grid {
  int64_t x = 1, y = 1;
};

// What the emulated CUDA table keeps: the fault word, and the CPU's table for products.
class EmulatedState : public OpState {
 public:
  explicit EmulatedState(Device& device) : cpu_(make_exec(cpu_ops(), device, stream_, 1)) {}
  unsigned* fault_word() { return &fault_word_; }
  void check_faults(Stream&) override;  // as that of the CUDA state
  Exec& cpu() { return cpu_; }

 private:
  HostStream stream_;
  Exec cpu_;
  unsigned fault_word_ = 0;
};

// As in cuda_state.h.
enum CudaFault : unsigned { kFaultToken = 1, kFaultTarget = 2 };

class CudaQueue {
 public:
  explicit CudaQueue(Exec& exec);
  // Of exactly this size, filled with a NaN pattern.
  std::byte* scratch(size_t bytes);
  unsigned* fault_word() { return state_.fault_word(); }

  // What happens on the stream in its turn; `work` owns what it needs, but for tensors and this queue's scratch.
  template <typename Work>
  void add(const Work& work) {
    if (deferred_ == nullptr)
      work();
    else
      deferred_->add([work, kept = scratch_] { work(); });
  }

  template <typename... Parameters, typename... Arguments>
  void launch(const char* what, void (*kernel)(Parameters...), Grid grid, int threads, size_t shared,
              const Arguments&... arguments) {
    if (grid.x == 0 || grid.y == 0) return;
    add([=, copies = std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)] {
      emulation::run_grid(what, grid.x, grid.y, threads, shared, [&] { std::apply(kernel, copies); });
    });
  }

 private:
  EmulatedState& state_;
  DeferredStream* deferred_;  // nullptr: work happens at once
  std::shared_ptr<std::vector<std::byte>> scratch_;
};

// The CUDA table with emulated kernels; products are those of the CPU. Where work happens at once it checks the fault
// word after every op.
const OpTable& emulated_cuda_ops();

}  // namespace thinwire
