// Inner loops of codec entropy, for one frame.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/kernel_table.h"

namespace thinwire {

struct EntropyKernels {
  // Symbols of n values: the exponent (fp32, bf16) or the upper byte (fp16). rest: sign and upper 7 mantissa bits, a
  // byte each, then for fp32 the lower 16 bits, two bytes each; fp16: the lower byte.
  void (*split)(const std::byte* in, DType dtype, int64_t n, uint8_t* symbols, std::byte* rest);
  void (*merge)(const uint8_t* symbols, const std::byte* rest, DType dtype, int64_t n, std::byte* out);
  // The same into fp32: out = or += values.
  void (*merge_wide)(const uint8_t* symbols, const std::byte* rest, DType dtype, int64_t n, float* out,
                     bool accumulate);
};
TW_DECLARE_KERNELS(EntropyKernels, entropy_kernels)

}  // namespace thinwire
