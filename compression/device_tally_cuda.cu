// What device coders found: squares of tiles added up, and flags brought into the sums that are reduced.
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

constexpr int64_t kTilesPerBlock = 4 * kTileThreads;

// Threads of all blocks take tiles (or sums of them) in turn; each block writes its sums at `to`, or adds them to
// `tally`.
template <typename T>
TW_KERNEL void __launch_bounds__(kTileThreads)
    add_tile_squares_kernel(const T* sums, int64_t tiles, double* to, DeviceTally* tally) {
  TW_SHARED_ARRAY(double, slots, 3 * kMostWarps);
  double all[3] = {};
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < tiles; t += threads) {
    TW_UNROLL
    for (int j = 0; j < 3; ++j) all[j] += static_cast<double>(sums[t * 3 + j]);
  }
  TW_UNROLL
  for (int j = 0; j < 3; ++j) all[j] = block_sum(all[j], slots + j * kMostWarps);
  if (threadIdx.x != 0) return;
  if (tally == nullptr) {
    for (int j = 0; j < 3; ++j) to[static_cast<int64_t>(blockIdx.x) * 3 + j] = all[j];
    return;
  }
  tally->error_square += all[0];
  tally->signal_square += all[1];
  tally->residual_square += all[2];
}

TW_KERNEL void __launch_bounds__(kWarp) tally_kernel(const DeviceTally* tally, uint32_t flags, double* sum) {
  if (threadIdx.x == 0 && (tally->flags & flags) != 0) sum[0] += 1.0;
}

}  // namespace

size_t tile_squares_bytes(int64_t tiles) {
  return static_cast<size_t>((tiles * 3 + 1) / 2 + ceil_div(tiles, kTilesPerBlock) * 3) * sizeof(double);
}

void queue_tile_squares(CudaQueue& queue, float* sums, int64_t tiles, DeviceTally* tally) {
  const int threads = tiles <= kWarp ? kWarp : kTileThreads;
  double* none = nullptr;
  const int64_t parts = ceil_div(tiles, kTilesPerBlock);
  if (parts <= 1) {
    queue.launch("add_tile_squares", add_tile_squares_kernel<float>, {1}, threads, 0, sums, tiles, none, tally);
    return;
  }
  double* of_parts = reinterpret_cast<double*>(sums) + (tiles * 3 + 1) / 2;
  DeviceTally* later = nullptr;
  queue.launch("add_tile_squares", add_tile_squares_kernel<float>, {parts}, threads, 0, sums, tiles, of_parts, later);
  queue.launch("add_tile_squares", add_tile_squares_kernel<double>, {1}, threads, 0, of_parts, parts, none, tally);
}

void queue_tally(Exec& exec, const DeviceTally* tally, uint32_t flags, double* sum) {
  CudaQueue queue(exec);
  queue.launch("tally", tally_kernel, {1}, kWarp, 0, tally, flags, sum);
}

}  // namespace thinwire
