// What device coders found: squares of tiles added up, and flags brought into the sums that are reduced.
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

// One block; thread t adds tiles t, t + threads, ...
TW_KERNEL void __launch_bounds__(kTileThreads)
    add_tile_squares_kernel(const float* sums, int64_t tiles, DeviceTally* tally) {
  TW_SHARED_ARRAY(double, slots, 3 * kMostWarps);
  double all[3] = {};
  for (int64_t t = threadIdx.x; t < tiles; t += blockDim.x) {
    TW_UNROLL
    for (int j = 0; j < 3; ++j) all[j] += static_cast<double>(sums[t * 3 + j]);
  }
  TW_UNROLL
  for (int j = 0; j < 3; ++j) all[j] = block_sum(all[j], slots + j * kMostWarps);
  if (threadIdx.x != 0) return;
  tally->error_square += all[0];
  tally->signal_square += all[1];
  tally->residual_square += all[2];
}

TW_KERNEL void __launch_bounds__(kWarp) tally_kernel(const DeviceTally* tally, uint32_t flags, double* sum) {
  if (threadIdx.x == 0 && (tally->flags & flags) != 0) sum[0] += 1.0;
}

}  // namespace

void queue_tile_squares(CudaQueue& queue, const float* sums, int64_t tiles, DeviceTally* tally) {
  const int threads = tiles <= kWarp ? kWarp : kTileThreads;
  queue.launch("add_tile_squares", add_tile_squares_kernel, {1}, threads, 0, sums, tiles, tally);
}

void queue_tally(Exec& exec, const DeviceTally* tally, uint32_t flags, double* sum) {
  CudaQueue queue(exec);
  queue.launch("tally", tally_kernel, {1}, kWarp, 0, tally, flags, sum);
}

}  // namespace thinwire
