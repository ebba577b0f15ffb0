// Sums over fixed blocks of 4096 elements, whose results are added up in order.
#include <algorithm>

#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kReduceBlock = 4096;
constexpr int64_t kRound = 1024;  // blocks whose sums are kept at a time
constexpr int64_t kTask = 8;      // blocks that a thread takes together: waking it must pay

template <typename BlockSum>
double blockwise(int threads, int64_t n, const BlockSum& block_sum) {
  double partial[kRound];
  double total = 0.0;
  const int64_t blocks = (n + kReduceBlock - 1) / kReduceBlock;
  for (int64_t start = 0; start < blocks; start += kRound) {
    const int64_t count = std::min(kRound, blocks - start);
    parallel_blocks(threads, count, kTask, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = (start + i) * kReduceBlock;
        partial[i] = block_sum(at, std::min(kReduceBlock, n - at));
      }
    });
    for (int64_t i = 0; i < count; ++i) total += partial[i];
  }
  return total;
}

}  // namespace

void weighted_sum_cpu(Exec& exec, const WeightedSum& op) {
  const float *a = op.a.as<float>(), *b = op.b.as<float>();
  const auto dot = TW_PICK_KERNELS(reduce_kernels).dot;
  op.out.as<double>()[0] +=
      blockwise(exec.threads, op.a.count(), [&](int64_t at, int64_t count) { return dot(a + at, b + at, count); });
}

void sum_squares_cpu(Exec& exec, const SumSquares& op) {
  const auto dot = TW_PICK_KERNELS(reduce_kernels).dot;
  const double sum = blockwise(exec.threads, op.x.count(), [&](int64_t at, int64_t count) {
    if (op.x.dtype == DType::f32) return dot(op.x.as<float>() + at, op.x.as<float>() + at, count);
    float wide[kReduceBlock];
    for (int64_t i = 0; i < count; ++i) wide[i] = to_float(op.x.as<Bf16>()[at + i]);
    return dot(wide, wide, count);
  });
  op.out.as<double>()[0] += op.factor * sum;
}

}  // namespace thinwire
