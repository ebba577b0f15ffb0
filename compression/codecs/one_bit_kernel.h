// The inner loops of one_bit.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

struct OneBitKernels {
  // Sum of |x| or of x^2 over n elements, NaN if one of them is NaN or infinite; the order depends on n alone.
  double (*sum)(const float* x, int64_t n, bool squares);
  // ceil(n / 8) bytes; bits behind the last element are zero.
  void (*pack)(const float* x, int64_t n, uint8_t* out);
  // out = or += scale with the sign of its bit. scale >= 0, or NaN.
  void (*unpack)(const uint8_t* in, int64_t n, float scale, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(OneBitKernels, one_bit_kernels)

}  // namespace thinwire
