// What the backends of the op table share: the list of ops, their declarations, the check in front of every entry, and
// the cuts that both backends make alike.
#pragma once

#include <cstdint>
#include <type_traits>

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
  X(copy_runs)            \
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

template <typename Entry>
struct OpOfEntry;
template <typename Op>
struct OpOfEntry<void (*)(Exec&, const Op&)> {
  using Type = Op;
};

// For every op:
// - check_op(op): CHECKs what ops.h says of the arguments (op_checks.cpp); false: there is nothing to do.
// - name_cpu, name_cuda: the op of a backend. It relies on check_op and on there being something to do. What only the
//   memory itself can tell (tokens and targets in range) and the limits of a backend stay with it.
#define TW_DECLARE_OP(name)                                          \
  bool check_op(const OpOfEntry<decltype(OpTable::name)>::Type& op); \
  std::remove_pointer_t<decltype(OpTable::name)> name##_cpu, name##_cuda;
TW_FOR_EACH_OP(TW_DECLARE_OP)
#undef TW_DECLARE_OP

// The entry of a table: the check, then the backend's op.
template <auto kOp, typename Op>
void checked(Exec& exec, const Op& op) {
  if (check_op(op)) kOp(exec, op);
}

// Kernel tables are arrays {fp32, bf16, fp16}; CHECKs that `dtype` is one of them.
inline int storage_index(DType dtype) {
  TW_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "no kernel for ", name_of(dtype));
  return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2;
}

// Column sums are made of blocks of rows, each with a partial sum of its own, added up in order. The cut depends on the
// number of rows alone: at least 32 rows a block, and so many that there are at most 256 partial sums.
inline int64_t rows_per_partial(int64_t rows) {
  const int64_t even = (rows + 255) / 256;
  return even < 32 ? 32 : (even + 3) / 4 * 4;
}

}  // namespace thinwire
