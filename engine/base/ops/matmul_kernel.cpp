// Widens rows of 16-bit numbers and rounds finished rows; compiled once per instruction set.
#include "engine/base/ops/flat_kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

template <typename T>
void widen(const T* src, float* dst, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dst + i, load(src + i));
  if (i < n) store_first(dst + i, load_first(src + i, n - i), n - i);
}

template <typename T>
void finish(const float* sum, const float* bias, bool accumulate, T* c, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VecF v = load(sum + i);
    if (bias != nullptr) v = v + load(bias + i);
    if (accumulate) v = v + load(c + i);
    store(c + i, v);
  }
  if (i < n) {
    const int64_t rest = n - i;
    VecF v = load_first(sum + i, rest);
    if (bias != nullptr) v = v + load_first(bias + i, rest);
    if (accumulate) v = v + load_first(c + i, rest);
    store_first(c + i, v, rest);
  }
}

}  // namespace

constinit const MatmulKernels matmul_kernels = {widen<Bf16>, widen<Fp16>, finish<float>, finish<Bf16>, finish<Fp16>};

}  // namespace thinwire::TW_ISA
