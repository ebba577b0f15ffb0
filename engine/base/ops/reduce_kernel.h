// The inner loops of sums in double.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// Sums over elements [0, n) in an order that depends on n alone.
struct ReduceKernels {
  double (*sum)(const float* a, int64_t n);
  double (*dot)(const float* a, const float* b, int64_t n);
};
TW_DECLARE_KERNELS(ReduceKernels, reduce_kernels)

}  // namespace thinwire
