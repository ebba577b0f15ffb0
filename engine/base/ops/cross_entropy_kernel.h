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

// A rank's columns of the logits: the block's valid_cols may be 0, targets count from first_col on.
struct VocabBlock {
  CrossEntropyBlock block;
  int64_t first_col, ranks, n;
  float* statistics;  // [n,3], written
  const float* all;   // [ranks,n,3], read
};

struct CrossEntropyKernels {
  void (*rows[3])(const CrossEntropyBlock&, int64_t first, int64_t last);
  void (*statistics[3])(const VocabBlock&, int64_t first, int64_t last);
  void (*vocab_rows[3])(const VocabBlock&, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(CrossEntropyKernels, cross_entropy_kernels)

}  // namespace thinwire
