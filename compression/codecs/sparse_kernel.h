// Inner loops of top-k selection (count, find and pack the numbers of largest magnitude), and of codec sketch.
//
// The key of a number is the bits of its absolute value: keys order like magnitudes, infinity is kInfiniteKey and NaN
// lies above it. Memory "with slack" may be written up to kSparseSlack elements past the count that is returned.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

inline constexpr int64_t kSparseSlack = 16, kSketchLanes = 16;
inline constexpr uint32_t kInfiniteKey = 0x7f800000u;

// Selects the numbers whose key is above `key`, and the first `ties` of those whose key equals it.
struct Threshold {
  uint32_t key = 0;
  int64_t ties = 0;
  uint32_t max_key = 0;  // of the vector; >= kInfiniteKey: it holds an infinity or NaN
};

// How many keys are > high, == high, between, and == low, for two keys low <= high.
struct Bracket {
  int64_t above = 0, at_high = 0, between = 0, at_low = 0;  // at_low is 0 where low == high
  uint32_t max_key = 0;
};

struct SparseKernels {
  void (*bracket)(const float* x, int64_t n, uint32_t low, uint32_t high, Bracket* counts);  // adds to *counts
  // keys (with slack) = those of x strictly between low and high. Returns how many.
  int64_t (*gather_keys)(const float* x, int64_t n, uint32_t low, uint32_t high, uint32_t* keys);
  // The k-th largest of n keys, 1 <= k <= n; it must lie in [low, high].
  uint32_t (*kth_largest)(const uint32_t* keys, int64_t n, int64_t k, uint32_t low, uint32_t high);
  // The threshold that selects the `keep` largest of an x that fits in the cache; scratch: [n + 2 kSparseSlack].
  Threshold (*find_small)(const float* x, int64_t n, int64_t keep, uint32_t* scratch);
  // Indices (from 0) and values of what the threshold selects, both with slack; *ties counts down. Returns how many.
  int64_t (*take)(const float* x, int64_t n, uint32_t key, int64_t* ties, uint32_t* index, float* value);
  // The same as a bitmap: bit i % 8 of bits[i / 8]; writes exactly ceil(n / 8) bytes. value: with slack, or nullptr.
  int64_t (*take_bits)(const float* x, int64_t n, uint32_t key, int64_t* ties, uint8_t* bits, float* value);
  // values (with slack) = the x whose bits are set. Returns how many.
  int64_t (*pack)(const float* x, int64_t n, const uint8_t* bits, float* values);
  // out = or += values where bits are set, 0 elsewhere; values are read with slack. Returns how many were set.
  int64_t (*unpack)(const uint8_t* bits, int64_t n, const float* values, float* out, bool accumulate);
  // x = 0 where bits are set.
  void (*clear)(float* x, int64_t n, const uint8_t* bits);
  // Conversions to the wire and back. To: finite values saturate, infinity and NaN stay. out = v * scale.
  void (*to_bf16)(const float* v, int64_t n, uint16_t* out);
  void (*to_fp16)(const float* v, int64_t n, float scale, uint16_t* out);
  void (*from_fp16)(const uint16_t* v, int64_t n, float scale, float* out);
  uint32_t (*max_key)(const float* x, int64_t n);

  // The integer sketch adds every block of kSketchLanes = 16 rounded elements to one row of each of three hash tables:
  // table[cells[3 b + j] + i] += round(x[16 b + i] * inverse) mod 2^32, for j = 0, 1, 2, where the bit of element
  // 16 b + i is set. cells[3 b + j]: first cell of block b's row in table j. x, bits: n elements, from the start of a
  // block.
  void (*add_to_tables)(const float* x, int64_t n, const uint8_t* bits, const uint32_t* cells, float inverse,
                        int32_t* table);
  // x -= round(x * inverse) * step where the bit is set; exact when inverse == 1 / step is a power of two.
  void (*subtract_rounded)(float* x, int64_t n, const uint8_t* bits, float inverse, float step);
};
TW_DECLARE_KERNELS(SparseKernels, sparse_kernels)

}  // namespace thinwire
