// The inner loops of lloyd_max.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// One group of n <= block * max(1, 4096 / block) elements; bytes as in BlockLayout.
struct LloydMaxKernels {
  // Returns whether all elements were finite.
  bool (*encode)(int bits, int64_t block, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(int bits, int64_t block, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(LloydMaxKernels, lloyd_max_kernels)

}  // namespace thinwire
