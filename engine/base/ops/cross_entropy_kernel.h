// The inner loop of softmax cross entropy: rows of logits to losses, and in place to gradients.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// logits: rows of `cols` elements of the storage type, of which the first valid_cols count. scale null: logits are only
// read.
struct CrossEntropyBlock {
  void* logits;
  const int32_t* targets;
  const float* row_weight;
  float* loss;
  const float* scale;
  int64_t cols, valid_cols;
};

struct CrossEntropyKernels {
  void (*rows[3])(const CrossEntropyBlock&, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(CrossEntropyKernels, cross_entropy_kernels)

}  // namespace thinwire
