// The inner loops of codec cast: elements to payload bytes and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// Formats: 0 bf16, 1 fp16, 2 e4m3, 3 e5m2. Elements: 0 fp32, 1 bf16, 2 fp16. Payloads need no alignment.
struct CastKernels {
  // Returns whether some input was not finite, or rounded to what is not (see cast.cpp).
  bool (*encode[4][3])(const void* in, std::byte* out, int64_t n);  // [format][elements]
  void (*decode[4][3])(const std::byte* in, void* out, int64_t n);
  void (*accumulate[4])(const std::byte* in, float* out, int64_t n);
};
TW_DECLARE_KERNELS(CastKernels, cast_kernels)

}  // namespace thinwire
