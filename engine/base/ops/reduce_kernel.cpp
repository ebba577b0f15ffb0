// Sums of products of fp32 numbers in double; compiled once per instruction set.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

double dot(const float* a, const float* b, int64_t n) {
  const auto term = [&](int64_t i) TW_INLINE_LAMBDA { return load_wide(a + i) * load_wide(b + i); };
  VecD s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kWide <= n; i += 4 * kWide) {
    s0 += term(i);
    s1 += term(i + kWide);
    s2 += term(i + 2 * kWide);
    s3 += term(i + 3 * kWide);
  }
  const VecD s = (s0 + s1) + (s2 + s3);
  double total = 0.0;
  for (int lane = 0; lane < kWide; ++lane) total += s[lane];
  for (; i < n; ++i) total += (double)a[i] * (double)b[i];
  return total;
}

}  // namespace

constinit const ReduceKernels reduce_kernels = {dot};

}  // namespace thinwire::TW_ISA
