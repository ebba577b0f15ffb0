// Casts in vectors. 8-bit formats are rounded in integers (normal numbers) or by the adder (subnormals), and come back
// through fp16, whose conversion instruction knows subnormals.
#include "compression/codecs/cast_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// Storage of a vector of codes, with and without the end of the payload in sight.
#ifdef __AVX512F__
TW_INLINE void store_bytes(uint8_t* p, VecI v) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
}
TW_INLINE VecF half_to_float(const uint8_t* p, int shift, int mask) {  // ((code & mask) << shift) as fp16
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  return (VecF)_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16((short)mask)), shift));
}
TW_INLINE VecI load_bytes(const uint8_t* p) {
  return (VecI)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
#else
TW_INLINE void store_bytes(uint8_t* p, VecI v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)v, (__m256i)v), 0xd8);
  const __m128i low = _mm256_castsi256_si128(words);
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(low, low));
}
TW_INLINE VecF half_to_float(const uint8_t* p, int shift, int mask) {
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
  return (VecF)_mm256_cvtph_ps(_mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16((short)mask)), shift));
}
TW_INLINE VecI load_bytes(const uint8_t* p) {
  return (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
#endif

TW_INLINE VecI sign_byte(VecI bits) {
  return (VecI)((VecU)bits >> 24) & 0x80;
}

// A format: how many bytes a code has, from which magnitude (as bits of a float) on non_finite is raised.
struct AsBf16 {
  static constexpr int kBytes = 2, kBadFrom = 0x7f7f8000;
  TW_INLINE static void put(std::byte* p, VecF v) { store((Bf16*)p, v); }
  TW_INLINE static VecF get(const std::byte* p) { return load((const Bf16*)p); }
};
struct AsFp16 {
  static constexpr int kBytes = 2, kBadFrom = 0x477ff000;  // 65520
  TW_INLINE static void put(std::byte* p, VecF v) { store((Fp16*)p, v); }
  TW_INLINE static VecF get(const std::byte* p) { return load((const Fp16*)p); }
};
// kCut mantissa bits of a float go; kBias is its exponent bias minus the format's, in codes; adding kStep (as a float)
// leaves multiples of the smallest subnormal in the last bits.
template <int kCut, int kBias, int kMinNormal, int kStep, int kLargest, int kInfinity>
struct As8Bits {
  static constexpr int kBytes = 1, kBadFrom = 0x7f800000;
  TW_INLINE static void put(std::byte* p, VecF v) {
    const VecI bits = (VecI)v;
    const VecI size = bits & 0x7fffffff;
    const VecU magnitude = (VecU)size;  // without sign: a NaN's bits may run over
    const VecU rounded = magnitude + (uint32_t)((1 << (kCut - 1)) - 1) + ((magnitude >> kCut) & 1u);
    const VecI normal = (VecI)(rounded >> kCut) - kBias;
    const VecI small = (VecI)((VecF)size + (VecF)splat_i(kStep)) - kStep;
    VecI code = size < kMinNormal ? small : normal;
    code = code > kLargest ? splat_i(kLargest) : code;
    code = size == 0x7f800000 ? splat_i(kInfinity) : code;
    code = size > 0x7f800000 ? splat_i(0x7f) : code;
    store_bytes((uint8_t*)p, code | sign_byte(bits));
  }
};
struct AsE4M3 : As8Bits<20, (127 - 7) << 3, (127 - 6) << 23, (127 + 14) << 23, 0x7e, 0x7f> {
  TW_INLINE static VecF get(const std::byte* p) {
    const VecI code = load_bytes((const uint8_t*)p);
    const VecI size = (VecI)(half_to_float((const uint8_t*)p, 7, 0x7f) * splat(256.0f));
    const VecI value = (code & 0x7f) == 0x7f ? splat_i(0x7fc00000) : size;
    return (VecF)(value | ((code & 0x80) << 24));
  }
};
struct AsE5M2 : As8Bits<21, (127 - 15) << 2, (127 - 14) << 23, (127 + 7) << 23, 0x7b, 0x7c> {
  TW_INLINE static VecF get(const std::byte* p) { return half_to_float((const uint8_t*)p, 8, 0xff); }
};

template <typename Format, typename T>
bool encode(const void* in_start, std::byte* out, int64_t n) {
  const T* in = (const T*)in_start;
  VecI bad{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF v = load(in + i);
    bad |= ((VecI)v & 0x7fffffff) >= Format::kBadFrom;
    Format::put(out + i * Format::kBytes, v);
  }
  if (i < n) {
    std::byte codes[kLanes * Format::kBytes];
    const VecF v = load_first(in + i, n - i);
    bad |= ((VecI)v & 0x7fffffff) >= Format::kBadFrom;
    Format::put(codes, v);
    __builtin_memcpy(out + i * Format::kBytes, codes, (size_t)(n - i) * Format::kBytes);
  }
  int any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= bad[lane];
  return any != 0;
}

template <typename Format, typename T, bool kAdd>
TW_INLINE void decode_to(const std::byte* in, T* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VecF v = Format::get(in + i * Format::kBytes);
    if constexpr (kAdd) v = load(out + i) + v;
    store(out + i, v);
  }
  if (i < n) {
    std::byte codes[kLanes * Format::kBytes] = {};
    __builtin_memcpy(codes, in + i * Format::kBytes, (size_t)(n - i) * Format::kBytes);
    VecF v = Format::get(codes);
    if constexpr (kAdd) v = load_first(out + i, n - i) + v;
    store_first(out + i, v, n - i);
  }
}
template <typename Format, typename T>
void decode(const std::byte* in, void* out, int64_t n) {
  decode_to<Format, T, false>(in, (T*)out, n);
}
template <typename Format>
void accumulate(const std::byte* in, float* out, int64_t n) {
  decode_to<Format, float, true>(in, out, n);
}

}  // namespace

constinit const CastKernels cast_kernels = {
    {{encode<AsBf16, float>, encode<AsBf16, Bf16>, encode<AsBf16, Fp16>},
     {encode<AsFp16, float>, encode<AsFp16, Bf16>, encode<AsFp16, Fp16>},
     {encode<AsE4M3, float>, encode<AsE4M3, Bf16>, encode<AsE4M3, Fp16>},
     {encode<AsE5M2, float>, encode<AsE5M2, Bf16>, encode<AsE5M2, Fp16>}},
    {{decode<AsBf16, float>, decode<AsBf16, Bf16>, decode<AsBf16, Fp16>},
     {decode<AsFp16, float>, decode<AsFp16, Bf16>, decode<AsFp16, Fp16>},
     {decode<AsE4M3, float>, decode<AsE4M3, Bf16>, decode<AsE4M3, Fp16>},
     {decode<AsE5M2, float>, decode<AsE5M2, Bf16>, decode<AsE5M2, Fp16>}},
    {accumulate<AsBf16>, accumulate<AsFp16>, accumulate<AsE4M3>, accumulate<AsE5M2>},
};

}  // namespace thinwire::TW_ISA
