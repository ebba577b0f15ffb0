// Scales of blocks as bytes below their group's largest, and sums over a block that are the same in every instruction
// set. Included only by *_kernel.cpp files, with the rules of engine/base/ops/simd.h.
#pragma once

#include "compression/codecs/block_simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr float kLargestScale = 0x1.fcp+125f;
constexpr uint16_t kLargestHead = 0x7e7e;  // in bf16
constexpr uint16_t kNanHead = 0x7fc0;

// Below this mean the inverse overflows: nothing is left of such a block (a residual keeps it).
constexpr float kSmallestMean = 0x1p-120f;

// Sums over a block in 16 lanes, element i in lane i % 16, and the lanes pairwise: the same in every instruction set.
struct Lanes {
  static constexpr int kParts = 16 / kLanes;
  VecF part[kParts] = {};
  // Of 16 / kParts lanes, the first step taken.
  TW_INLINE VecF folded() const {
    VecF sum = part[0];
    if constexpr (kParts == 2) sum += part[kParts - 1];
    return sum;
  }
  TW_INLINE float total() const {
    float v[16];
    for (int j = 0; j < kParts; ++j) store(v + j * kLanes, part[j]);
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v[i] += v[i + width];
    }
    return v[0];
  }
};

// Mean and largest of a block's magnitudes; the largest is not finite where an element is not.
struct Size {
  float mean, largest;
};
TW_INLINE bool finite(float largest) {
  return largest <= 0x1.fffffep+127f;
}

TW_INLINE Size size_of_block(const float* x, int64_t n) {
  const VecF share = splat(1.0f / (float)n);
  Lanes mean;
  VecF largest{};
  for (int64_t i = 0; i < n; i += 16) {
    for (int j = 0; j < Lanes::kParts; ++j) {
      const int64_t at = i + j * kLanes, left = n - at;
      const VecF v = magnitude(left >= kLanes ? load(x + at) : left > 0 ? load_first(x + at, left) : VecF{});
      largest = (VecF)vmax_u((VecU)largest, (VecU)v);  // of magnitudes' bits: NaN is above infinity
      mean.part[j] = fma(v, share, mean.part[j]);
    }
  }
  uint32_t most = 0, each[kLanes];
  store_u(each, (VecU)largest);
  for (const uint32_t v : each) most = most >= v ? most : v;
  float top;
  __builtin_memcpy(&top, &most, 4);
  return {mean.total(), top};
}

// kLanes whole blocks: returns their means; largest [kLanes].
TW_INLINE VecF sizes_of_blocks(const float* x, int64_t block, float* largest) {
  const VecF share = splat(1.0f / (float)block);
  VecF sums[kLanes], most[kLanes];
  for (int b = 0; b < kLanes; ++b) {
    Lanes mean;
    VecF top{};
    for (int64_t i = 0; i < block; i += 16) {
      for (int j = 0; j < Lanes::kParts; ++j) {
        const VecF v = magnitude(load(x + b * block + i + j * kLanes));
        top = (VecF)vmax_u((VecU)top, (VecU)v);
        mean.part[j] = fma(v, share, mean.part[j]);
      }
    }
    sums[b] = mean.folded();
    most[b] = top;
  }
  store_u((uint32_t*)largest, lane_maxima((const VecU*)most));
  return lane_sums(sums);
}

// A group's largest scale travels in bf16, rounded up, and that of a block as its logarithm below: code c stands for
// head * 2^((c - 255) / 8), 0 for nothing at all.
constexpr float kEighths[] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                              1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
TW_INLINE float power_of_two(int e) {
  const uint32_t bits = (uint32_t)(e + 127) << 23;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
TW_INLINE float scale_of(float head, uint8_t code) {
  const int steps = code - 255 + 256;  // > 0
  return code == 0 ? 0.0f : head * power_of_two(steps / 8 - 32) * kEighths[steps % 8];
}
// The nearest codes, in the logarithm; ratio = scale / head in [0, 1], or NaN.
TW_INLINE VecI codes_of(VecF ratio) {
  constexpr float kHalf = 1.04427378f;  // 2^(1/16)
  const VecI bits = (VecI)product(ratio, splat(kHalf));
  const VecF fraction = (VecF)((bits & 0x7fffff) | 0x3f800000);
  VecI code = ((bits >> 23) - 127) * 8 + 255;
  for (int k = 1; k < 8; ++k) code -= fraction >= splat(kEighths[k]);
  code = code > 255 ? splat_i(255) : code;
  return ratio >= splat(0x1p-31f) ? code : VecI{};
}

// [head][one byte per block]. scales: NaN where something is not finite; room for kLanes more behind the last, which
// become 0. Returns whether all are finite; else the head is NaN.
TW_INLINE bool write_scales(float* scales, int64_t blocks, uint8_t* out) {
  float largest = 0.0f;
  bool good = true;
  for (int64_t b = 0; b < blocks; ++b) {
    good &= scales[b] == scales[b];
    largest = scales[b] > largest ? scales[b] : largest;
  }
  uint32_t bits;
  __builtin_memcpy(&bits, &largest, 4);
  bits = (bits + 0xffffu) & 0xffff0000u;
  const uint16_t half = good ? (uint16_t)(bits >> 16) : kNanHead;
  __builtin_memcpy(out, &half, 2);
  float head;
  __builtin_memcpy(&head, &bits, 4);
  const VecF inverse = splat(good && head > 0.0f ? 1.0f / head : 0.0f);
  for (int i = 0; i < kLanes; ++i) scales[blocks + i] = 0.0f;
  for (int64_t b = 0; b < blocks; b += kLanes) {
    int32_t each[kLanes];
    store_u((uint32_t*)each, (VecU)codes_of(product(load(scales + b), inverse)));
    const int64_t count = blocks - b < kLanes ? blocks - b : kLanes;
    for (int64_t i = 0; i < count; ++i) out[2 + b + i] = (uint8_t)each[i];
  }
  return good;
}

// What write_scales() wrote, all NaN behind a NaN head. False: no encoder writes such a head.
TW_INLINE bool read_scales(const uint8_t* in, int64_t blocks, float* scales) {
  uint16_t half;
  __builtin_memcpy(&half, in, 2);
  if (half > kLargestHead && half != kNanHead) return false;
  const uint32_t bits = (uint32_t)half << 16;
  float head;
  __builtin_memcpy(&head, &bits, 4);
  for (int64_t b = 0; b < blocks; ++b) scales[b] = half == kNanHead ? head : scale_of(head, in[2 + b]);
  return true;
}

}  // namespace
}  // namespace thinwire::TW_ISA
