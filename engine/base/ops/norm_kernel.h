// The inner loops of LayerNorm and RMSNorm over a block of rows.
#pragma once

#include <cstdint>

#include "engine/base/ops/dropout_plan.h"
#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// Pointers to the starts of the tensors, of the storage type of the kernel where they are void. Null where ops.h says
// "may be empty".
struct NormForwardBlock {
  const void* x;
  const void* branch;
  void* sum;
  const void* weight;
  const void* bias;
  void* y;
  float* mean;
  float* rstd;
  int64_t cols;
  float eps;
  DropoutPlan dropout;
};

struct NormBackwardBlock {
  const void* dy;
  const void* x;
  const void* weight;
  const float* mean;
  const float* rstd;
  const void* residual;
  void* dx;
  int64_t cols;
};

// Kernels work on rows [first, last). Backward writes (not adds) the block's own sums to dweight and dbias: [cols]
// each; dbias may be null. Arrays are indexed by storage type.
struct NormKernels {
  void (*layer_forward[3])(const NormForwardBlock&, int64_t first, int64_t last);
  void (*rms_forward[3])(const NormForwardBlock&, int64_t first, int64_t last);
  void (*layer_backward[3])(const NormBackwardBlock&, int64_t first, int64_t last, float* dweight, float* dbias);
  void (*rms_backward[3])(const NormBackwardBlock&, int64_t first, int64_t last, float* dweight, float* dbias);
};
TW_DECLARE_KERNELS(NormKernels, norm_kernels)

}  // namespace thinwire
