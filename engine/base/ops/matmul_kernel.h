// Conversions around a product whose inputs are widened to fp32.
#pragma once

#include <cstdint>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/kernel_table.h"

namespace thinwire {

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

}  // namespace thinwire
