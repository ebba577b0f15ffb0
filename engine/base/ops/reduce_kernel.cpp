// Sums and products of fp32 numbers in double; compiled once per instruction set.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// term(i) is a vector of doubles, tail(i) one double.
template <typename Term, typename Tail>
TW_INLINE double sum_terms(int64_t n, const Term& term, const Tail& tail) {
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
  for (; i < n; ++i) total += tail(i);
  return total;
}

double sum(const float* a, int64_t n) {
  return sum_terms(
      n, [&](int64_t i) TW_INLINE_LAMBDA { return load_wide(a + i); },
      [&](int64_t i) TW_INLINE_LAMBDA { return (double)a[i]; });
}

double dot(const float* a, const float* b, int64_t n) {
  return sum_terms(
      n, [&](int64_t i) TW_INLINE_LAMBDA { return load_wide(a + i) * load_wide(b + i); },
      [&](int64_t i) TW_INLINE_LAMBDA { return (double)a[i] * (double)b[i]; });
}

}  // namespace

constinit const ReduceKernels reduce_kernels = {sum, dot};

}  // namespace thinwire::TW_ISA
