// The names of all ops, once: whoever must treat every entry of an OpTable alike (tests, profilers) expands this list.
#pragma once

#include "engine/base/ops/ops.h"

// X(name) for every op; OpTable::name is its entry.
#define TW_FOR_EACH_OP(X) \
  X(matmul)               \
  X(norm_forward)         \
  X(norm_backward)        \
  X(residual_add)         \
  X(dropout_apply)        \
  X(rotary)               \
  X(attention_forward)    \
  X(attention_backward)   \
  X(gelu_forward)         \
  X(gelu_backward)        \
  X(swiglu_forward)       \
  X(swiglu_backward)      \
  X(embedding_forward)    \
  X(embedding_backward)   \
  X(cross_entropy)        \
  X(vocab_statistics)     \
  X(vocab_loss)           \
  X(weighted_sum)         \
  X(sum_squares)          \
  X(bias_gradient)        \
  X(cast)                 \
  X(axpy)                 \
  X(fill_normal)          \
  X(fill_constant)        \
  X(adamw)                \
  X(momentum_share)       \
  X(sgd)

namespace thinwire {

#define TW_COUNT_ONE(name) +1
inline constexpr int kOpCount = TW_FOR_EACH_OP(TW_COUNT_ONE);
#undef TW_COUNT_ONE
// backend, isa, make_state and fused_products stand in front of the ops: an op that is missing from the list fails
// here.
static_assert(sizeof(OpTable) == (4 + kOpCount) * sizeof(void*), "TW_FOR_EACH_OP and OpTable must name the same ops");

}  // namespace thinwire
