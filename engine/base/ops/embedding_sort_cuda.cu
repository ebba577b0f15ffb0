// The device-wide radix sort of CUB behind a plain function: its headers cost ten seconds to compile.
#include <cub/device/device_radix_sort.cuh>

#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

size_t sort_pairs_bytes_cuda(int64_t count, int key_bits) {
  size_t bytes = 0;
  TW_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const uint32_t*>(nullptr),
                                          static_cast<uint32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
                                          static_cast<int32_t*>(nullptr), static_cast<int>(count), 0, key_bits));
  return bytes;
}

void sort_pairs_cuda(CudaQueue& queue, void* scratch, size_t scratch_bytes, const uint32_t* keys, uint32_t* sorted_keys,
                     const int32_t* values, int32_t* sorted_values, int64_t count, int key_bits) {
  TW_CHECK(count > 0 && count < int64_t{1} << 31, "sorting ", count, " pairs");
  TW_CUDA(cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, keys, sorted_keys, values, sorted_values,
                                          static_cast<int>(count), 0, key_bits, queue.stream()));
}

}  // namespace thinwire
