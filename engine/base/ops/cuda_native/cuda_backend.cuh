// Kernels on the GPU: what cuda_kernel.h promises, said in CUDA. For nvcc alone; the include folder of the CUDA build.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "engine/base/core/check.h"
#include "engine/base/core/dtype.h"
#include "engine/base/ops/cuda_state.h"

#define TW_KERNEL __global__
#define TW_DEVICE __device__ __forceinline__
#define TW_GRID_CONSTANT __grid_constant__
#define TW_SHARED_ARRAY(Type, name, count) __shared__ Type name[count]
#define TW_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define TW_UNROLL _Pragma("unroll")
#define TW_TEXT(x) #x
#define TW_UNROLL_BY(n) _Pragma(TW_TEXT(unroll n))

namespace thinwire {

constexpr int kWarp = 32;

template <typename T>
TW_DEVICE T shuffle_xor(T value, int lanes) {
  return __shfl_xor_sync(0xffffffffu, value, lanes);
}

template <typename T>
TW_DEVICE T shuffle_from(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
TW_DEVICE unsigned warp_max(unsigned value) {
  return __reduce_max_sync(0xffffffffu, value);
}

TW_DEVICE void atomic_or(unsigned* word, unsigned bits) {
  atomicOr(word, bits);
}
TW_DEVICE void atomic_max(unsigned* word, unsigned value) {
  atomicMax(word, value);
}

template <int kBytes>
struct Raw;
template <>
struct Raw<2> {
  unsigned short v;
};
template <>
struct Raw<4> {
  unsigned v;
};
template <>
struct Raw<8> {
  uint2 v;
};
template <>
struct Raw<16> {
  uint4 v;
};
template <>
struct Raw<32> {
  uint4 v[2];
};

// Memory is aligned to kBytes, 16 at most.
template <int kBytes>
TW_DEVICE Raw<kBytes> load_raw(const void* p) {
  Raw<kBytes> r;
  if constexpr (kBytes == 32) {
    r.v[0] = static_cast<const uint4*>(p)[0];
    r.v[1] = static_cast<const uint4*>(p)[1];
  } else {
    r.v = *static_cast<const decltype(r.v)*>(p);
  }
  return r;
}
template <int kBytes>
TW_DEVICE void store_raw(void* p, const Raw<kBytes>& r) {
  if constexpr (kBytes == 32) {
    static_cast<uint4*>(p)[0] = r.v[0];
    static_cast<uint4*>(p)[1] = r.v[1];
  } else {
    *static_cast<decltype(Raw<kBytes>::v)*>(p) = r.v;
  }
}

TW_DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t picks) {
  return __byte_perm(a, b, picks);
}
TW_DEVICE float float_of_bits(uint32_t bits) {
  return __uint_as_float(bits);
}
TW_DEVICE float half_to_float(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
TW_DEVICE uint16_t float_to_half(float v) {
  return __half_as_ushort(__float2half_rn(v));
}
TW_DEVICE uint16_t float_to_bf16(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

// Two numbers as the halves of a word, the first one low; one instruction.
TW_DEVICE uint32_t pair_of_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
TW_DEVICE uint32_t pair_of_half(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

// 2^x to 2^-22, numbers below 2^-126 are 0; one instruction.
TW_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// a / b to 2 ulp, and 0 where |b| is beyond 2^126.
TW_DEVICE float fast_divide(float a, float b) {
  return __fdividef(a, b);
}

struct Grid {
  int64_t x = 1, y = 1;
};

// Where an op queues its kernels: the stream of its Exec, and what the CUDA state lends. Nothing here waits.
class CudaQueue {
 public:
  explicit CudaQueue(Exec& exec) : state_(state_of(exec)), stream_(stream_of(exec)) {}

  // One buffer per op, aligned to 512 bytes, content undefined.
  std::byte* scratch(size_t bytes) { return state_.scratch(bytes, stream_); }
  unsigned* fault_word() { return state_.fault_word(); }
  cudaStream_t stream() const { return stream_; }

  // kernel<<<grid, threads, shared>>>(args...); `what` names it in errors. No kernel is launched for an empty grid.
  template <typename... Parameters, typename... Arguments>
  void launch(const char* what, void (*kernel)(Parameters...), Grid grid, int threads, size_t shared,
              const Arguments&... arguments) {
    if (grid.x == 0 || grid.y == 0) return;
    TW_CHECK(grid.x > 0 && grid.x <= 0x7fffffff && grid.y > 0 && grid.y <= 65535 && threads > 0 && threads <= 1024,
             what, " over ", grid.x, " x ", grid.y, " blocks of ", threads);
    // Static arrays (a kernel that has dynamic ones keeps to 1 KB of them) count towards the 48 KB that need no asking.
    if (shared + 1024 > 48 << 10) {
      TW_CHECK(shared + 1024 <= state_.shared_per_block(), what, " needs ", shared,
               " bytes of shared memory, a block has ", state_.shared_per_block());
      TW_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared)));
    }
    kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)), threads, shared, stream_>>>(
        static_cast<Parameters>(arguments)...);
    TW_CUDA_LAUNCHED(what, stream_);
  }

 private:
  CudaState& state_;
  cudaStream_t stream_;
};

}  // namespace thinwire
