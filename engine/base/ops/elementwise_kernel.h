// The inner loops of plain element-by-element ops and of column sums.
#pragma once

#include <cstdint>

#include "engine/base/ops/dropout_plan.h"
#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// void pointers are starts of tensors of the storage type that indexes the array; kernels work on flat elements [first,
// last), column_sums on rows [first, last).
struct ElementwiseKernels {
  void (*residual_add[3])(const void* x, const void* branch, void* y, const DropoutPlan&, int64_t first, int64_t last);
  void (*dropout_apply[3])(const void* x, void* y, const DropoutPlan&, int64_t first, int64_t last);
  void (*cast[3][3])(const void* src, void* dst, int64_t first, int64_t last);  // [from][to]
  void (*axpy[3])(float alpha, const void* x, void* y, int64_t first, int64_t last);
  void (*fill_constant[3])(void* x, float value, int64_t first, int64_t last);
  // partial[c] = sum over the rows of dy[row, c]; written, not added.
  void (*column_sums[3])(const void* dy, int64_t cols, int64_t first, int64_t last, float* partial);
  // out[c] += partials[0][c] + partials[1][c] + ... in order, for columns [first, last); partial p starts at p *
  // stride.
  void (*add_partials)(float* out, const float* partials, int64_t stride, int64_t parts, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(ElementwiseKernels, elementwise_kernels)

}  // namespace thinwire
