// Codec one_bit: magnitudes summed in double, sign bits packed and unpacked; compiled once per instruction set.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_simd.h"

namespace thinwire::TW_ISA {
namespace {

// The same partial sums on every instruction set, so that the total is: element i goes to sum i % 16.
constexpr int kPartialSums = 16;
TW_INLINE VecD absolute(VecD v) {
#ifdef __AVX512F__
  return (VecD)_mm512_abs_pd((__m512d)v);
#else
  return (VecD)_mm256_andnot_pd(_mm256_set1_pd(-0.0), (__m256d)v);
#endif
}

double sum_magnitudes(const float* x, int64_t n) {
  constexpr int kVectors = kPartialSums / kWide;
  VecD part[kVectors] = {};
  const auto add = [&](const float* p) TW_INLINE_LAMBDA {
    for (int j = 0; j < kVectors; ++j) part[j] += absolute(load_wide(p + j * kWide));
  };
  int64_t i = 0;
  for (; i + kPartialSums <= n; i += kPartialSums) add(x + i);
  if (i < n) {
    float last[kPartialSums] = {};
    for (int64_t j = i; j < n; ++j) last[j - i] = x[j];
    add(last);
  }
  double sums[kPartialSums];
  for (int j = 0; j < kPartialSums; ++j) sums[j] = part[j / kWide][j % kWide];
  for (int half = kPartialSums / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  // Only an infinity or NaN in x makes the sum infinite or NaN (finite floats do not overflow a double); then sum - sum
  // is NaN.
  return sums[0] - sums[0] == 0.0 ? sums[0] : __builtin_nan("");
}

// Bit i: element i is below zero.
TW_INLINE uint32_t below_zero(VecF v) {
#ifdef __AVX512F__
  return bits_of(_mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_LT_OQ));
#else
  return (uint32_t)_mm256_movemask_ps((__m256)(v < splat(0.0f)));
#endif
}
// `scale`, negated in element i where bit i is set.
TW_INLINE VecF signed_scale(VecF scale, uint32_t bits) {
#ifdef __AVX512F__
  return (VecF)_mm512_mask_xor_epi32((__m512i)scale, (__mmask16)bits, (__m512i)scale, _mm512_set1_epi32(INT32_MIN));
#else
  const VecU at_sign = (VecU{} + bits) << VecU{31, 30, 29, 28, 27, 26, 25, 24};  // bit i, in element i
  return (VecF)((VecU)scale ^ (at_sign & 0x80000000u));
#endif
}

void pack(const float* x, int64_t n, uint8_t* out) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t word = 0;
    for (int j = 0; j < kUnitVectors; ++j) word |= (uint64_t)below_zero(load(x + i + j * kLanes)) << (j * kLanes);
    __builtin_memcpy(out + i / 8, &word, 8);
  }
  for (; i < n; i += 8) {
    uint8_t byte = 0;
    for (int64_t j = i; j < n && j < i + 8; ++j) byte |= (uint8_t)((x[j] < 0.0f) << (j - i));
    out[i / 8] = byte;
  }
}

template <bool Add>
TW_INLINE void unpack_as(const uint8_t* in, int64_t n, float scale, float* out) {
  const VecF s = splat(scale);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t word;
    __builtin_memcpy(&word, in + i / 8, 8);
    for (int j = 0; j < kUnitVectors; ++j) {
      float* p = out + i + j * kLanes;
      const VecF v = signed_scale(s, (uint32_t)(word >> (j * kLanes)));
      store(p, Add ? load(p) + v : v);
    }
  }
  for (; i < n; ++i) {
    const float v = in[i / 8] >> (i % 8) & 1 ? -scale : scale;
    out[i] = Add ? out[i] + v : v;
  }
}
void unpack(const uint8_t* in, int64_t n, float scale, float* out, bool accumulate) {
  if (accumulate) {
    unpack_as<true>(in, n, scale, out);
  } else {
    unpack_as<false>(in, n, scale, out);
  }
}

}  // namespace

constinit const OneBitKernels one_bit_kernels = {sum_magnitudes, pack, unpack};

}  // namespace thinwire::TW_ISA
