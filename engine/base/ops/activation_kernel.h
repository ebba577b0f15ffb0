// The inner loops of GELU and SwiGLU.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

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

}  // namespace thinwire
