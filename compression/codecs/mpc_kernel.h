// Inner loops of codec mpc: one unit of at most 1024 words at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

inline constexpr int64_t kMpcUnit = 1024;  // words

struct MpcKernels {
  // words in 1..kMpcUnit from `in`; ceil(words / 32) bitmap words to `bitmap`, the words that are not zero to `payload`
  // (no other byte is touched). Returns how many those are. Any alignment.
  int64_t (*encode_unit)(const std::byte* in, int64_t words, int dimension, std::byte* bitmap, std::byte* payload);
  // Sum of the bits of `words` bitmap words.
  int64_t (*count_bits)(const std::byte* bitmap, int64_t words);
  // The reverse; the payload has exactly as many words as the bitmap has bits. Writes words rounded up to 32.
  void (*decode_unit)(const std::byte* bitmap, const std::byte* payload, int64_t words, int dimension, uint32_t* out);
};
TW_DECLARE_KERNELS(MpcKernels, mpc_kernels)

}  // namespace thinwire
