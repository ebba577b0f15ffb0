// What the backends of the op table share: the ops' declarations, the check in front of every entry, and the cuts that
// both backends make alike.
#pragma once

#include <cstdint>

#include "engine/base/ops/ops.h"

namespace thinwire {

// For every op:
// - check_op(op): CHECKs what ops.h says of the arguments (op_checks.cpp); false: there is nothing to do.
// - name_cpu, name_cuda: the op of a backend. It relies on check_op and on there being something to do. What only the
//   memory itself can tell (tokens and targets in range) and the limits of a backend stay with it.
#define TW_DECLARE_OP(name, Op)              \
  bool check_op(const Op& op);               \
  void name##_cpu(Exec& exec, const Op& op); \
  void name##_cuda(Exec& exec, const Op& op);
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

// The same of the gradients of a norm's parameters on a GPU: at least 8 rows, at most 1024 partial sums.
inline int64_t norm_rows_per_partial(int64_t rows) {
  const int64_t even = (rows + 1023) / 1024;
  return even < 8 ? 8 : even;
}

// A GPU adds up the gradient of a row of the embedding in pieces of so many tokens.
inline constexpr int kEmbeddingPiece = 256;

}  // namespace thinwire
