// The inner loops of the codecs that give a block of elements one scale: mx, e3m0, lloyd_max, one_bit (block_int has
// its own header). Those with a BlockLayout take one group of it at a time.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

enum class MxFormat : uint8_t { kE4m3, kE5m2, kE2m3, kE3m2, kE2m1, kNvfp4 };

// One group of n <= 4096 elements; bytes as in BlockLayout.
struct MxKernels {
  // Returns whether all elements were finite.
  bool (*encode)(MxFormat format, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(MxFormat format, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(MxKernels, mx_kernels)

// One group of n <= block * max(1, 4096 / block) elements; bytes as in BlockLayout.
struct E3m0Kernels {
  // Returns whether all elements were finite.
  bool (*encode)(int64_t block, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(int64_t block, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(E3m0Kernels, e3m0_kernels)

// One group of n <= block * max(1, 4096 / block) elements; bytes as in BlockLayout.
struct LloydMaxKernels {
  // Returns whether all elements were finite.
  bool (*encode)(int bits, int64_t block, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(int bits, int64_t block, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(LloydMaxKernels, lloyd_max_kernels)

struct OneBitKernels {
  // Sum of |x| over n elements, NaN if one of them is NaN or infinite; the order depends on n alone.
  double (*sum)(const float* x, int64_t n);
  // ceil(n / 8) bytes; bits behind the last element are zero.
  void (*pack)(const float* x, int64_t n, uint8_t* out);
  // out = or += scale with the sign of its bit. scale >= 0, or NaN.
  void (*unpack)(const uint8_t* in, int64_t n, float scale, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(OneBitKernels, one_bit_kernels)

}  // namespace thinwire
