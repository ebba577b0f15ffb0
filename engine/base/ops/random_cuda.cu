// Normal random numbers on CUDA: the Philox words of the CPU, and Box-Muller in double as there.
//
// The words are equal bit by bit. The numbers are rounded once from double, where log, sin and cos differ between
// libraries in the last place (2^-52): about one number in 2^27 may round to the neighbouring float.
#include "engine/base/ops/cuda_dropout.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kThreads = 256;

struct TwoNormals {
  float a, b;
};
TW_DEVICE TwoNormals two_normals(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double angle = (static_cast<double>(b) + 0.5) * 0x1p-32 * 6.283185307179586476925286766559;
  const double radius = sqrt(-2.0 * log(u));
  return {static_cast<float>(radius * cos(angle)), static_cast<float>(radius * sin(angle))};
}

// Thread t makes the numbers of one Philox block: elements [4 (first / 4 + t), ... + 4) of the whole tensor.
template <typename T>
TW_KERNEL void __launch_bounds__(kThreads)
    fill_normal_kernel(T* x, int64_t count, int64_t first, float std, uint64_t seed, uint32_t tensor) {
  const int64_t block = first / 4 + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t start = block * 4 - first;  // in the view; negative where the view starts inside of the block
  if (start >= count) return;
  const auto number = static_cast<uint64_t>(block);
  const Words words =
      philox_words(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(number),
                   static_cast<uint32_t>(number >> 32), tensor, static_cast<uint32_t>(RandomPurpose::kInit));
  const TwoNormals low = two_normals(words.w[0], words.w[1]), high = two_normals(words.w[2], words.w[3]);
  const float four[4] = {low.a, low.b, high.a, high.b};
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    if (start + k >= 0 && start + k < count) narrow(four[k] * std, x[start + k]);
  }
}

}  // namespace

void fill_normal_cuda(Exec& exec, const FillNormal& op) {
  const int64_t n = op.x.count();
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t blocks = ceil_div(op.first + n, 4) - op.first / 4;
    queue.launch("fill_normal", fill_normal_kernel<T>, {ceil_div(blocks, kThreads)}, kThreads, 0, op.x.as<T>(), n,
                 op.first, op.std, op.seed, op.tensor_id);
  });
}

}  // namespace thinwire
