// The inner loops of ops that walk flat elements or whole rows: element by element, activations, the conversions around
// a widened product, sums in double.
#pragma once

#include <cstdint>

#include "engine/base/core/dtype.h"
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

// void pointers are starts of tensors of the storage type that indexes the array. GELU kernels work on flat elements
// [first, last); SwiGLU kernels on rows [first, last) of x [N, 2 * cols] = gate | up.
struct ActivationKernels {
  void (*gelu_tanh_forward[3])(const void* x, void* y, int64_t first, int64_t last);
  void (*gelu_exact_forward[3])(const void* x, void* y, int64_t first, int64_t last);
  void (*gelu_tanh_backward[3])(const void* x, const void* dy, void* dx, int64_t first, int64_t last);
  void (*gelu_exact_backward[3])(const void* x, const void* dy, void* dx, int64_t first, int64_t last);
  void (*swiglu_forward[3])(const void* x, void* y, int64_t cols, int64_t first, int64_t last);
  void (*swiglu_backward[3])(const void* x, const void* dy, void* dx, int64_t cols, int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(ActivationKernels, activation_kernels)

struct MatmulKernels {
  // dst[i] = src[i], n elements.
  void (*widen_bf16)(const Bf16* src, float* dst, int64_t n);
  void (*widen_fp16)(const Fp16* src, float* dst, int64_t n);
  // c[i] = sum[i] (+ bias[i] when bias is given) (+ c[i] when accumulate), rounded once.
  void (*finish_f32)(const float* sum, const float* bias, bool accumulate, float* c, int64_t n);
  void (*finish_bf16)(const float* sum, const float* bias, bool accumulate, Bf16* c, int64_t n);
  void (*finish_fp16)(const float* sum, const float* bias, bool accumulate, Fp16* c, int64_t n);
};
TW_DECLARE_KERNELS(MatmulKernels, matmul_kernels)

// Sums over elements [0, n) in an order that depends on n alone.
struct ReduceKernels {
  double (*sum)(const float* a, int64_t n);
  double (*dot)(const float* a, const float* b, int64_t n);
};
TW_DECLARE_KERNELS(ReduceKernels, reduce_kernels)

}  // namespace thinwire
