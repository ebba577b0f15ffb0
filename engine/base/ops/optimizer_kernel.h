// The inner loops of the optimizers: one pass over a run of flat fp32 buffers that share one weight decay.
#pragma once

#include <cstdint>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// All pointers are the starts of the flat buffers; a kernel works on elements [first, last). At most one of the working
// copies is given. `decay` is the finished product of the step's weight decay and the span's.
struct AdamWBlock {
  float* master;
  float* m;
  float* v;
  float* gradient;
  Bf16* working_bf16;
  Fp16* working_fp16;
  int64_t first, last;
  float lr, grad_scale, decay;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  float inverse_correction1, inverse_correction2;
  float momentum_limit;  // of |m^| / sqrt(v^), where the momentum is taken as it comes
  bool zero_gradient, takes_momentum;
};

struct SgdBlock {
  float* master;
  float* buffer;  // null when momentum is 0
  float* gradient;
  Bf16* working_bf16;
  Fp16* working_fp16;
  int64_t first, last;
  float lr, grad_scale, decay, momentum;
  bool zero_gradient;
};

struct OptimizerKernels {
  void (*adamw_block)(const AdamWBlock&);
  void (*sgd_block)(const SgdBlock&);
  // gradient = gradient_factor * gradient + momentum_factor * m over n elements
  void (*momentum_share)(const float* m, float* gradient, int64_t n, float momentum_factor, float gradient_factor);
};
TW_DECLARE_KERNELS(OptimizerKernels, optimizer_kernels)

}  // namespace thinwire
