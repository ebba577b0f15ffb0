// Widens rows of 16-bit numbers and rounds finished rows; compiled once per instruction set.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

template <typename T>
void widen(const void* src, float* dst, int64_t n) {
  for_vectors(n, [&](auto part, int64_t i, int64_t k)
                     TW_INLINE_LAMBDA { store_at(part, dst + i, load_at(part, (const T*)src + i, k), k); });
}

template <typename T>
void finish(const float* sum, const float* bias, bool accumulate, void* c_start, int64_t n) {
  T* c = (T*)c_start;
  for_vectors(n, [&](auto part, int64_t i, int64_t k) TW_INLINE_LAMBDA {
    VecF v = load_at(part, sum + i, k);
    if (bias != nullptr) v = v + load_at(part, bias + i, k);
    if (accumulate) v = v + load_at(part, c + i, k);
    store_at(part, c + i, v, k);
  });
}

}  // namespace

constinit const MatmulKernels matmul_kernels = {{widen<float>, widen<Bf16>, widen<Fp16>},
                                                {finish<float>, finish<Bf16>, finish<Fp16>}};

}  // namespace thinwire::TW_ISA
