// Sums in double on CUDA: a grid that depends on the number of elements alone, then one block that adds up the
// blocks.
#include <algorithm>

#include "engine/base/ops/cuda_reduce.h"
#include "engine/base/ops/cuda_vector.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPiece = 4096;   // elements that a block reads at a time
constexpr int kMostBlocks = 1024;  // partial sums

// partials[block] = sum of a * b, or of squares of a, over the pieces block, block + blocks, ...
template <bool kSquares, typename T>
TW_KERNEL void __launch_bounds__(kThreads)
    sum_kernel(const T* a, const T* b, double* partials, int64_t count, bool vectors) {
  TW_SHARED_ARRAY(double, slots, kMostWarps);
  constexpr int kSteps = static_cast<int>(kPiece / (4 * kThreads));
  const auto term = [](float x, float y) { return static_cast<double>(x) * static_cast<double>(kSquares ? x : y); };
  double sum = 0.0;
  for (int64_t start = static_cast<int64_t>(blockIdx.x) * kPiece; start < count;
       start += static_cast<int64_t>(gridDim.x) * kPiece) {
    if (vectors && start + kPiece <= count) {
      float x[kSteps][4], y[kSteps][4] = {};
      TW_UNROLL
      for (int s = 0; s < kSteps; ++s) {
        const int64_t i = start + (s * kThreads + static_cast<int>(threadIdx.x)) * 4;
        load_floats<4>(a + i, x[s]);
        if constexpr (!kSquares) load_floats<4>(b + i, y[s]);
      }
      TW_UNROLL
      for (int s = 0; s < kSteps; ++s) {
        TW_UNROLL
        for (int k = 0; k < 4; ++k) sum += term(x[s][k], y[s][k]);
      }
    } else {
      const int64_t end = start + kPiece < count ? start + kPiece : count;
      for (int64_t i = start + threadIdx.x; i < end; i += kThreads) {
        sum += term(widen(a[i]), kSquares ? 0.0f : widen(b[i]));
      }
    }
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

TW_KERNEL void __launch_bounds__(kMostBlocks)
    add_sums_kernel(const double* partials, double* out, int count, double factor) {
  TW_SHARED_ARRAY(double, slots, kMostWarps);
  const int i = static_cast<int>(threadIdx.x);
  const double sum = block_sum(i < count ? partials[i] : 0.0, slots);
  if (i == 0) out[0] += factor * sum;
}

template <bool kSquares, typename T>
void queue_sum(Exec& exec, const T* a, const T* b, double* out, int64_t n, double factor) {
  CudaQueue queue(exec);
  const int64_t blocks = std::min<int64_t>(kMostBlocks, ceil_div(n, kPiece));
  auto* partials = reinterpret_cast<double*>(queue.scratch(kMostBlocks * sizeof(double)));
  queue.launch("sum", sum_kernel<kSquares, T>, {blocks}, kThreads, 0, a, b, partials, n, aligned16(a, b));
  queue.launch("add_sums", add_sums_kernel, {1}, static_cast<int>(ceil_div(blocks, kWarp) * kWarp), 0, partials, out,
               blocks, factor);
}

}  // namespace

void weighted_sum_cuda(Exec& exec, const WeightedSum& op) {
  queue_sum<false>(exec, op.a.as<float>(), op.b.as<float>(), op.out.as<double>(), op.a.count(), 1.0);
}

void sum_squares_cuda(Exec& exec, const SumSquares& op) {
  if (op.x.dtype == DType::bf16)
    queue_sum<true, Bf16>(exec, op.x.as<Bf16>(), nullptr, op.out.as<double>(), op.x.count(), op.factor);
  else
    queue_sum<true, float>(exec, op.x.as<float>(), nullptr, op.out.as<double>(), op.x.count(), op.factor);
}

}  // namespace thinwire
