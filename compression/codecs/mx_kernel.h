// The inner loops of mx.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

enum class MxFormat : uint8_t { kE4m3, kE5m2, kE2m3, kE3m2, kE2m1, kNvfp4 };

// One group of n <= 4096 elements; bytes as in BlockLayout.
struct MxKernels {
  // Returns whether all elements were finite.
  bool (*encode)(MxFormat format, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(MxFormat format, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(MxKernels, mx_kernels)

}  // namespace thinwire
