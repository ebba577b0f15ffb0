// The kernel tables of all ops but attention: inner loops over elements, rows or tokens, compiled once per instruction
// set (simd.h says what such files may do). Arrays are indexed by storage type; void pointers are starts of tensors of
// it.
#pragma once

#include <cstdint>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/dropout_plan.h"
#include "engine/base/ops/kernel_table.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

// On flat elements [first, last), column_sums on rows [first, last).
struct ElementwiseKernels {
  void (*residual_add[3])(const void* x, const void* branch, void* y, const DropoutPlan&, int64_t first, int64_t last);
  void (*dropout_apply[3])(const void* x, void* y, const DropoutPlan&, int64_t first, int64_t last);
  void (*cast[3][3])(const void* src, void* dst, int64_t first, int64_t last);  // [from][to]
  void (*axpy[3])(float alpha, const void* x, float beta, void* y, int64_t first, int64_t last);
  void (*fill_constant[3])(void* x, float value, int64_t first, int64_t last);
  // partial[c] = sum over the rows of dy[row, c]; written, not added.
  void (*column_sums[3])(const void* dy, int64_t cols, int64_t first, int64_t last, float* partial);
  // out[c] += partials[0][c] + partials[1][c] + ... in order, for columns [first, last); partial p starts at p *
  // stride.
  void (*add_partials)(float* out, const float* partials, int64_t stride, int64_t parts, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(ElementwiseKernels, elementwise_kernels)

// GELU kernels work on flat elements [first, last); SwiGLU kernels on rows [first, last) of x [N, 2 * cols] = gate |
// up.
struct ActivationKernels {
  void (*gelu_forward[2][3])(const void* x, void* y, int64_t first, int64_t last);  // [GeluKind]
  void (*gelu_backward[2][3])(const void* x, const void* dy, void* dx, int64_t first, int64_t last);
  void (*swiglu_forward[3])(const void* x, void* y, int64_t cols, int64_t first, int64_t last);
  void (*swiglu_backward[3])(const void* x, const void* dy, void* dx, int64_t cols, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(ActivationKernels, activation_kernels)

// Over n elements.
struct MatmulKernels {
  void (*widen[3])(const void* src, float* dst, int64_t n);  // dst[i] = src[i]
  // c[i] = sum[i] (+ bias[i] when bias is given) (+ c[i] when accumulate), rounded once.
  void (*finish[3])(const float* sum, const float* bias, bool accumulate, void* c, int64_t n);
};
TW_DECLARE_KERNELS(MatmulKernels, matmul_kernels)

// A sum over elements [0, n) in an order that depends on n alone.
struct ReduceKernels {
  double (*dot)(const float* a, const float* b, int64_t n);
};
TW_DECLARE_KERNELS(ReduceKernels, reduce_kernels)

// Kernels work on rows [first, last) of an op, of `cols` elements each; dropout is that of the branch. Backward writes
// (not adds) the rows' own sums to dweight and dbias: [cols] each; dbias may be null.
struct NormKernels {
  void (*forward[2][3])(const NormForward&, const DropoutPlan&, int64_t cols, int64_t first,
                        int64_t last);  // [NormKind]
  void (*backward[2][3])(const NormBackward&, int64_t cols, int64_t first, int64_t last, float* dweight, float* dbias);
};
TW_DECLARE_KERNELS(NormKernels, norm_kernels)

// On tokens [first, last) of batch * length.
struct RotaryKernels {
  void (*tokens[3])(const Rotary&, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(RotaryKernels, rotary_kernels)

// Kernels work on rows [first, last) of the op's logits, of `cols` elements of the storage type each, of which the
// first `valid` count (of a rank's columns of a vocabulary: maybe none).
struct CrossEntropyKernels {
  void (*rows[3])(const CrossEntropy&, int64_t cols, int64_t first, int64_t last);
  void (*statistics[3])(const VocabStatistics&, int64_t cols, int64_t valid, int64_t first, int64_t last);
  // n: rows that `all` has of each of the ranks.
  void (*vocab_rows[3])(const VocabLoss&, int64_t cols, int64_t valid, int64_t n, int64_t ranks, int64_t first,
                        int64_t last);
};
TW_DECLARE_KERNELS(CrossEntropyKernels, cross_entropy_kernels)

// Tokens [first, first + count) are rows of the table at hand.
struct TokenRows {
  int64_t first, count;
};

struct EmbeddingKernels {
  // x[n] = table[tokens[n] - rows.first], or 0 outside of `rows` (+ positions[first_position + n % length], when given)
  // for tokens [first, last).
  void (*forward[3])(const int32_t* tokens, TokenRows rows, const void* table, const void* positions, const int32_t* at,
                     void* x, int64_t cols, int64_t length, int64_t first_position, int64_t first, int64_t last);
  // dtable[tokens[n] - rows.first, c] += dx[n, c] for columns [first, last) and the tokens inside `rows` with tokens[n]
  // % shares == share, n ascending.
  void (*backward[3])(const int32_t* tokens, TokenRows rows, int64_t count, const void* dx, float* dtable, int64_t cols,
                      int64_t shares, int64_t share, int64_t first, int64_t last);
  // dpositions[p] += dx[p] + dx[p + length] + ... in order, for positions [first, last) of a batch of `count` tokens.
  void (*positions_backward[3])(int64_t count, const void* dx, const int32_t* at, float* dpositions, int64_t cols,
                                int64_t length, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(EmbeddingKernels, embedding_kernels)

// Kernels work on elements [first, last). `decay` is the finished product of the step's weight decay and the span's.
// Arrays are indexed by the storage type of the working copy; fp32: there is none.
struct OptimizerKernels {
  void (*adamw[3])(const AdamW&, const StepState&, float decay, int64_t first, int64_t last);
  void (*sgd[3])(const Sgd&, const StepState&, float decay, int64_t first, int64_t last);
  // Working copy and gradient in bf16.
  void (*narrow_adamw)(const AdamW&, const StepState&, float decay, int64_t first, int64_t last);
  void (*narrow_sgd)(const Sgd&, const StepState&, float decay, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(OptimizerKernels, optimizer_kernels)

}  // namespace thinwire
