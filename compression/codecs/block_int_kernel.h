// The inner loops of block_int.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

struct CodecSpec;

enum class BlockScale : uint8_t { kFp32, kFp16, kBf16, kE8m0 };

struct BlockIntForm {
  int64_t block = 0;  // 2 to 2^20
  int bits = 0;       // 8 | 6 | 4 | 2
  BlockScale scale = BlockScale::kFp16;
  bool asymmetric = false, stochastic = false;
};
// As configured, of values of all parameters. Throws Error(kBadConfig) for those that do not go together.
BlockIntForm block_int_form(const CodecSpec& spec);

// Rounding numbers of element i of the group: 16 bits of Philox block (first + i) / 8 under this key.
struct BlockIntNoise {
  uint32_t key0 = 0, key1 = 0;
  uint64_t first = 0;
};

// One group of n elements (n <= block * max(1, 4096 / block)); bytes as in BlockLayout.
struct BlockIntKernels {
  // Returns whether all elements were finite.
  bool (*encode)(const BlockIntForm& form, const BlockIntNoise& noise, const float* x, int64_t n, uint8_t* out);
  // Returns false if a scale is one that no encoder writes.
  bool (*decode)(const BlockIntForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate);
};
TW_DECLARE_KERNELS(BlockIntKernels, block_int_kernels)

}  // namespace thinwire
