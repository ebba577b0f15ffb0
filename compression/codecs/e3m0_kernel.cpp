// Powers of two with a scale per block; compiled once per instruction set.
#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_simd.h"

namespace thinwire::TW_ISA {
namespace {

struct PowerEncoder {
  template <typename Scales>
  TW_INLINE Codes unit(const float* x, const Scales& scales, int64_t) const {
    VecI q[kUnitVectors];
    for (int j = 0; j < kUnitVectors; ++j) {
      const VecF v = load(x + j * kLanes);
      const VecF y = product(magnitude(v), scales.at(j));
      // Half a mantissa rounds the exponent field up from 1.5 on. Code k > 0 is 2^(k - 7), whose field is k + 120.
      const VecI k = (VecI)(((VecU)y + 0x400000u) >> 23) - 120;
      const VecI least = y >= splat(0x1p-7f) ? splat_i(1) : splat_i(0);
      const VecI up = k > least ? k : least;
      q[j] = (up > 7 ? splat_i(7) : up) | ((VecI)v >> 31 & 8);
    }
    return narrow(q);
  }
};

struct PowerDecoder {
#ifdef __AVX512F__
  TW_INLINE static VecF levels() {
    return (VecF)_mm512_setr_ps(0, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1, 0, -0x1p-6f, -0x1p-5f,
                                -0x1p-4f, -0x1p-3f, -0x1p-2f, -0x1p-1f, -1);
  }
  TW_INLINE VecF values(VecF step) const {
    return product(levels(), step);
  }
  template <typename Scales>
  TW_INLINE VecF vector(const uint8_t* in, const Scales& scales, int j, int64_t) const {
    return product((VecF)_mm512_permutexvar_ps((__m512i)loose_codes<4>(in), (__m512)levels()), scales.at(j));
  }
  TW_INLINE VecF vector(const uint8_t* in, const OneScale& scales, int, int64_t) const {
    return (VecF)_mm512_permutexvar_ps((__m512i)loose_codes<4>(in), (__m512)scales.values);
  }
#else
  TW_INLINE VecF values(VecF) const {
    return VecF{};
  }
  template <typename Scales>
  TW_INLINE VecF vector(const uint8_t* in, const Scales& scales, int j, int64_t) const {
    const __m256 levels = _mm256_setr_ps(0, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1);
    const VecU codes = loose_codes<4>(in);
    const VecF level = (VecF)_mm256_permutevar8x32_ps(levels, (__m256i)codes);
    // The code 8 (minus nothing) is 0 here as in the table of the wider vectors.
    const VecU sign = level == splat(0.0f) ? VecU{} : codes << 28 & 0x80000000u;
    return product((VecF)((VecU)level | sign), scales.at(j));
  }
#endif
};

bool encode(const BlockForm& form, const BlockNoise&, const float* x, int64_t n, uint8_t* out) {
  const int64_t block = form.block;
  uint32_t keys[kMaxBlocks];
  float inverses[kMaxBlocks];
  const int64_t blocks = block_keys(x, n, block, keys);
  VecI bad{};
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const VecU key = load_u(keys + b);
    const VecI wrong = key >= kBadKey;
    const VecU top = key >> 1;
    VecF scale = (VecF)((top + 0x7fffu + (top >> 16 & 1u)) & 0xffff0000u);
    scale = vmin(vmax(scale, splat(0x1p-126f)), splat(0x1.fep127f));
    scale = top == 0u ? VecF{} : scale;
    scale = wrong ? (VecF)(VecU{} + 0x7fc00000u) : scale;
    bad |= wrong;
    store(inverses + b, top == 0u ? VecF{} : splat(1.0f) / scale);
    uint16_t halves[kLanes];
    store((Bf16*)halves, scale);
    for (int64_t i = 0; i < kLanes && b + i < blocks; ++i) __builtin_memcpy(out + (b + i) * 2, &halves[i], 2);
  }
  PowerEncoder body;
  encode_units<4>(x, n, block, inverses, out + blocks * 2, body);
  return !any(bad);
}

bool decode(const BlockForm& form, const uint8_t* in, int64_t n, float* out, bool accumulate) {
  float scales[kMaxBlocks];
  const int64_t block = form.block, blocks = (n + block - 1) / block;
  bool good = true;
  for (int64_t b = 0; b < blocks; ++b) {
    uint16_t half;
    __builtin_memcpy(&half, in + b * 2, 2);
    const uint32_t bits = (uint32_t)half << 16;
    __builtin_memcpy(&scales[b], &bits, 4);
    good &= half < 0x7f80 || half == 0x7fc0;
  }
  if (!good) return false;
  const PowerDecoder body;
  decode_units<4>(in + blocks * 2, n, block, scales, out, accumulate, body);
  return true;
}

}  // namespace

constinit const BlockKernels e3m0_kernels = {encode, decode};

}  // namespace thinwire::TW_ISA
