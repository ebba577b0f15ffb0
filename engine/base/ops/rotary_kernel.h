// The inner loop of rotary position embedding.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// data: storage type; strides in elements as HeadLayout in ops.h. Kernels work on tokens [first, last) of batch *
// length.
struct RotaryBlock {
  void* data;
  int64_t batch_stride, token_stride, group_stride, head_stride;
  int64_t length, groups, heads_per_group, half;  // half = rot_dim / 2
  int64_t first_position;
  const float* cos;
  const float* sin;
  bool inverse;
};

struct RotaryKernels {
  void (*tokens[3])(const RotaryBlock&, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(RotaryKernels, rotary_kernels)

}  // namespace thinwire
