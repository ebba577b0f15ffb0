// The inner loops of the codecs that give a block of elements one scale: block_int, mx, e3m0, lloyd_max, one_bit.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

struct CodecSpec;

enum class MxFormat : uint8_t { kE4m3, kE5m2, kE2m3, kE3m2, kE2m1, kNvfp4 };
// What an element of mx is: bits in all, mantissa bits, exponent bias, the largest code of a finite number and its
// exponent.
template <int kBits_, int kMantissa_, int kBias_, int kLargest_, int kMaxExponent_>
struct SmallFloat {
  static constexpr int kBits = kBits_, kMantissa = kMantissa_, kBias = kBias_, kLargest = kLargest_,
                       kMaxExponent = kMaxExponent_;
};
using E4m3 = SmallFloat<8, 3, 7, 0x7e, 8>;    // 448; 0x7f is NaN
using E5m2 = SmallFloat<8, 2, 15, 0x7b, 15>;  // 57344; above are infinity and NaN
using E2m3 = SmallFloat<6, 3, 1, 0x1f, 2>;    // 7.5
using E3m2 = SmallFloat<6, 2, 3, 0x1f, 4>;    // 28
using E2m1 = SmallFloat<4, 1, 1, 0x07, 2>;    // 6

enum class BlockScale : uint8_t { kFp32, kFp16, kBf16, kE8m0 };

// What decides about bytes; each codec reads what it has.
struct BlockForm {
  int64_t block = 0;  // elements that share a scale, 2 to 2^20
  int bits = 0;       // of an element
  MxFormat format = MxFormat::kE4m3;
  BlockScale scale = BlockScale::kFp16;  // of block_int, as what follows
  bool asymmetric = false, stochastic = false;
};
// That of block_int as configured, of values of all parameters. Throws Error(kBadConfig) for those that do not go
// together.
BlockForm block_int_form(const CodecSpec& spec);

// Rounding numbers of element i of the group, where it is stochastic: 16 bits of Philox block (first + i) / 8 under
// this key.
struct BlockNoise {
  uint32_t key0 = 0, key1 = 0;
  uint64_t first = 0;
};

// One group of n elements (n <= block * max(1, 4096 / block)); bytes as in BlockLayout.
struct BlockKernels {
  // Returns whether all elements were finite.
  bool (*encode)(const BlockForm& form, const BlockNoise& noise, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(BlockKernels, block_int_kernels)
TW_DECLARE_KERNELS(BlockKernels, mx_kernels)
TW_DECLARE_KERNELS(BlockKernels, e3m0_kernels)
TW_DECLARE_KERNELS(BlockKernels, lloyd_max_kernels)

struct OneBitKernels {
  // Sum of |x| over n elements, NaN if one of them is NaN or infinite; the order depends on n alone.
  double (*sum_magnitudes)(const float* x, int64_t n);
  // ceil(n / 8) bytes; bits after the last element are zero.
  void (*pack)(const float* x, int64_t n, uint8_t* out);
  // out = or += scale with the sign of its bit. scale >= 0, or NaN.
  void (*unpack)(const uint8_t* in, int64_t n, float scale, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(OneBitKernels, one_bit_kernels)

}  // namespace thinwire
