// Sorting pairs of 32-bit words on the device, in the order of arrival where keys are equal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

class CudaQueue;

// Bytes of scratch that sort_pairs_cuda wants; asks the library, queues nothing.
size_t sort_pairs_bytes_cuda(int64_t count, int key_bits);

// Sorts by the low key_bits of the keys, stable. In and out do not overlap.
void sort_pairs_cuda(CudaQueue& queue, void* scratch, size_t scratch_bytes, const uint32_t* keys, uint32_t* sorted_keys,
                     const int32_t* values, int32_t* sorted_values, int64_t count, int key_bits);

}  // namespace thinwire
