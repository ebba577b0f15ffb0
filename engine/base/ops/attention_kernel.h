// The tile loops of attention: plain arguments, and the kernel tables that are compiled once per instruction set.
//
// Scores are held transposed (keys down, queries across the lanes), so that the maximum and the sum of a softmax are
// vertical vector operations. Online softmax after Milakov and Gimelshein (2018); tiling and the recomputing backward
// after Dao et al. (2022). Tiles start at multiples of kAttentionKeys keys and kAttentionStrip queries, whatever range
// a call works on, and sums run in tile order: the bits do not depend on how the ranges are dealt out.
#pragma once

#include <cstdint>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/dropout_plan.h"
#include "engine/base/ops/kernel_table.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

constexpr int64_t kAttentionStrip = 64;  // queries of one tile
constexpr int64_t kAttentionKeys = 64;   // keys of one tile

// Queries [q_first, q_end) and keys [k_first, k_end) of all heads of one group of one sample. q_first is a multiple of
// kAttentionStrip and k_first one of kAttentionKeys.
struct AttentionRange {
  int64_t batch = 0, group = 0;
  int64_t q_first = 0, q_end = 0, k_first = 0, k_end = 0;
};

struct AttentionForwardKernels {
  // Bytes of scratch for a call with so many queries; does not depend on the number of keys.
  int64_t (*scratch)(const AttentionForward&, int64_t queries);
  // Writes, or merges into, out and lse of the range's queries; keys are all that the queries see (k_first and k_end
  // are not read).
  void (*run)(const AttentionForward&, const DropoutPlan&, const AttentionRange&, void* scratch);
};
TW_DECLARE_BF16_KERNELS(AttentionForwardKernels, attention_forward_kernels)

struct AttentionBackwardKernels {
  // Bytes of scratch for a call with so many queries at a time and so many keys in its range.
  int64_t (*scratch)(const AttentionBackward&, int64_t queries_at_a_time, int64_t keys);
  // Writes, or adds to, dq of the range's queries when want_dq (the range then holds all keys that they see), and dk
  // and dv of the range's keys when want_dkv (the range then holds all queries). Queries are taken so many at a time, a
  // multiple of the strip.
  void (*run)(const AttentionBackward&, const DropoutPlan&, const AttentionRange&, int64_t queries_at_a_time,
              bool want_dq, bool want_dkv, void* scratch);
};
TW_DECLARE_BF16_KERNELS(AttentionBackwardKernels, attention_backward_kernels)

}  // namespace thinwire
