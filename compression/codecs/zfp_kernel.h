// Inner loops of codec zfp: runs of whole blocks of four values, many blocks side by side.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

struct ZfpKernels {
  // x[4 * blocks] to ceil(blocks * maxbits / 8) bytes at out (any alignment; bits behind the last block are zero, bytes
  // behind are not touched). maxbits in 9..128. Returns whether all values were finite and below 2^126.
  bool (*encode)(const float* x, int64_t blocks, int maxbits, std::byte* out);
  // The reverse; x = or += decoded. Reads ceil(blocks * maxbits / 8) bytes.
  void (*decode)(const std::byte* in, int64_t blocks, int maxbits, float* x, bool accumulate);
};
TW_DECLARE_KERNELS(ZfpKernels, zfp_kernels)

}  // namespace thinwire
