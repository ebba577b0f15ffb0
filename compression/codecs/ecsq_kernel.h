// The inner loops of ecsq, for one frame of at most kEcsqFrame elements.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

inline constexpr int64_t kEcsqFrame = 32768;
inline constexpr int kEcsqBins = 512;      // of magnitudes in units of their block's, each 1 / kEcsqPerUnit wide
inline constexpr float kEcsqPerUnit = 32;  // the last bin holds all that is larger, too
inline constexpr uint8_t kEcsqZero = 128;  // the symbol of integer 0

struct EcsqKernels {
  // Units of blocks, at most `share` of a block's largest magnitude: two bytes of head and a byte each to out; their
  // inverses, 0 for a block of nothing; reach: the largest magnitude in units of its block. Returns false if an element
  // is not finite, or beyond 2^126.
  bool (*units)(const float* x, int64_t n, int64_t block, float share, uint8_t* out, float* inverses, float* reach);
  // bins[i]: how many of a sample's magnitudes are there. Returns the size of the sample: the first of every `stride`
  // runs of 64 elements, and none where a block has no unit.
  int64_t (*sample)(const float* x, int64_t n, int64_t block, const float* inverses, int64_t stride, uint32_t* bins);
  // symbols = kEcsqZero + the integer nearest to x * inverse * fineness, first moved by `less` towards zero and beyond,
  // ties to even, at most `most` either way.
  void (*quantize)(const float* x, int64_t n, int64_t block, const float* inverses, float fineness, float less,
                   float most, uint8_t* symbols);
  // out = or += (symbol - kEcsqZero) * step * unit, the units as units() wrote them. Returns false for a head that no
  // encoder writes.
  bool (*restore)(const uint8_t* symbols, int64_t n, int64_t block, const uint8_t* units, float step, float* out,
                  bool accumulate);
};
TW_DECLARE_KERNELS(EcsqKernels, ecsq_kernels)

}  // namespace thinwire
