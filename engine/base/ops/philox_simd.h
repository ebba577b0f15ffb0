// Philox (core/philox.h) for kernels: several blocks at a time, one per 64-bit lane, with the rules of simd.h.
#pragma once

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int kPhiloxBlocks = kLanes / 2;       // at a time
constexpr int kHalvesStep = 8 * kPhiloxBlocks;  // 16-bit numbers made at a time
constexpr int kHalvesSlack = kHalvesStep + 8;   // what random_halves needs beyond the numbers asked for

typedef uint64_t VecW __attribute__((vector_size(kLanes * 4), may_alias));

TW_INLINE VecW multiply_low_words(VecW a, VecW b) {
  return (VecW)TW_V(mul_epu32)((NativeI)a, (NativeI)b);
}
TW_INLINE VecU interleave_low(VecW a, VecW b) {
  return (VecU)TW_V(unpacklo_epi64)((NativeI)a, (NativeI)b);
}
TW_INLINE VecU interleave_high(VecW a, VecW b) {
  return (VecU)TW_V(unpackhi_epi64)((NativeI)a, (NativeI)b);
}
// The numbers of the blocks from `first` on, by lane. Lane 2i holds block i and lane 2i + 1 holds block i + half, so
// that unpacking leaves the words in order.
TW_INLINE VecW block_numbers(uint64_t first) {
#ifdef __AVX512F__
  return VecW{0, 4, 1, 5, 2, 6, 3, 7} + first;
#else
  return VecW{0, 2, 1, 3} + first;
#endif
}

// The words of blocks with these counters: `low` the first kLanes of them, `high` the rest. Words live in the low half
// of 64-bit lanes; the high half may hold rubbish, which no step looks at.
TW_INLINE void philox_words(uint32_t key0, uint32_t key1, VecW c0, VecW c1, VecW c2, VecW c3, VecU& low, VecU& high) {
  for (int round = 0; round < 10; ++round) {
    const VecW p0 = multiply_low_words(c0, VecW{} + 0xD2511F53u);
    const VecW p1 = multiply_low_words(c2, VecW{} + 0xCD9E8D57u);
    c0 = p1 >> 32 ^ c1 ^ key0;
    c1 = p1;
    c2 = p0 >> 32 ^ c3 ^ key1;
    c3 = p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const VecW words01 = (c0 & 0xffffffffu) | c1 << 32;
  const VecW words23 = (c2 & 0xffffffffu) | c3 << 32;
  low = interleave_low(words01, words23);
  high = interleave_high(words01, words23);
}

// 16 bits for each of elements [first, first + count): halves of the words of blocks e / 8 with the counter
// {block low, block high, purpose, 0}. `buffer` holds count + kHalvesSlack numbers; the result points into it at that
// of `first`, whose block begins at `buffer`.
TW_INLINE const uint16_t* random_halves(uint32_t key0, uint32_t key1, uint32_t purpose, uint64_t first, int64_t count,
                                        uint16_t* buffer) {
  const int64_t skew = (int64_t)(first & 7);
  for (int64_t i = 0; i < count + skew; i += kHalvesStep) {
    const VecW blocks = block_numbers((first + (uint64_t)i) >> 3);
    VecU low, high;
    philox_words(key0, key1, blocks, blocks >> 32, VecW{} + purpose, VecW{}, low, high);
    __builtin_memcpy(buffer + i, &low, sizeof low);
    __builtin_memcpy(buffer + i + 2 * kLanes, &high, sizeof high);
  }
  return buffer + skew;
}

}  // namespace
}  // namespace thinwire::TW_ISA
