// What the kernels of block codecs share: largest magnitudes of blocks, packed codes, and the loops over units of 64
// elements. Included only by *_kernel.cpp files, with the rules of engine/base/ops/simd.h.
#pragma once

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int64_t kUnit = 64;  // elements packed at a time: whole bytes for any width
constexpr int kUnitVectors = kUnit / kLanes;
constexpr int64_t kChunk = 1024;           // elements whose scales are spread out at a time
constexpr int64_t kMaxBlocks = 2048;       // of a group: 4096 / 2
constexpr uint32_t kBadKey = 0xff000000u;  // keys from here on are of NaN or infinity

// A product that is rounded before anything else happens to it: without the barrier the compiler may fuse it with a
// following addition on one instruction set and not on another.
TW_INLINE VecF rounded(VecF v) {
#ifdef __AVX512F__
  asm("" : "+v"(v));
#else
  asm("" : "+x"(v));
#endif
  return v;
}
TW_INLINE VecF product(VecF a, VecF b) {
  return rounded(a * b);
}
// The raw vector instructions, whose second operand wins when one is NaN.
TW_INLINE VecI to_nearest(VecF v) {
#ifdef __AVX512F__
  return (VecI)_mm512_cvt_roundps_epi32((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (VecI)_mm256_cvtps_epi32((__m256)v);
#endif
}
TW_INLINE VecF vfloor(VecF v) {
#ifdef __AVX512F__
  return (VecF)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  return (VecF)_mm256_floor_ps((__m256)v);
#endif
}
TW_INLINE VecU vmax_u(VecU a, VecU b) {
  return (VecU)TW_V(max_epu32)((NativeI)a, (NativeI)b);
}
TW_INLINE VecU load_u(const uint32_t* p) {
  return (VecU)load((const float*)p);
}
TW_INLINE void store_u(uint32_t* p, VecU v) {
  store((float*)p, (VecF)v);
}
TW_INLINE bool any(VecI mask) {
#ifdef __AVX512F__
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#else
  return _mm256_movemask_ps((__m256)mask) != 0;
#endif
}
TW_INLINE VecF magnitude(VecF v) {
  return (VecF)((VecU)v & 0x7fffffffu);
}

// ---- the element of largest magnitude ------------------------------------------------------------------------------
// Keys order floats by magnitude and, among equals, - behind +: the bits turned left by one. The largest key of a block
// gives back the element itself, sign included, and whether there was a NaN or an infinity.
TW_INLINE VecU key_of(VecF v) {
#ifdef __AVX512F__
  return (VecU)_mm512_rol_epi32((__m512i)v, 1);
#else
  return (VecU)v << 1 | (VecU)v >> 31;
#endif
}
TW_INLINE VecF value_of_key(VecU key) {
#ifdef __AVX512F__
  return (VecF)_mm512_ror_epi32((__m512i)key, 1);
#else
  return (VecF)(key >> 1 | key << 31);
#endif
}

// Lane i of the result: fold of the lanes of v[i]. Lane k meets lane k + half, then halves of halves: pairwise, the
// same way in every instruction set.
#ifdef __AVX512F__
template <typename Fold>
TW_INLINE VecU folded_lanes(const VecU* v, const Fold& fold) {
  __m512i quarter[4];
  for (int j = 0; j < 4; ++j) {
    const __m512i a = (__m512i)v[j], b = (__m512i)v[4 + j], c = (__m512i)v[8 + j], d = (__m512i)v[12 + j];
    const __m512i ab = fold(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    const __m512i cd = fold(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    quarter[j] = fold(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
  }
  const __m512i p = fold(_mm512_unpacklo_epi64(quarter[0], quarter[1]), _mm512_unpackhi_epi64(quarter[0], quarter[1]));
  const __m512i q = fold(_mm512_unpacklo_epi64(quarter[2], quarter[3]), _mm512_unpackhi_epi64(quarter[2], quarter[3]));
  return (VecU)fold((__m512i)_mm512_shuffle_ps((__m512)p, (__m512)q, 0x88),
                    (__m512i)_mm512_shuffle_ps((__m512)p, (__m512)q, 0xdd));
}
#else
template <typename Fold>
TW_INLINE VecU folded_lanes(const VecU* v, const Fold& fold) {
  __m256i half[4];
  for (int j = 0; j < 4; ++j) {
    const __m256i a = (__m256i)v[j], b = (__m256i)v[4 + j];
    half[j] = fold(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }
  const __m256i p = fold(_mm256_unpacklo_epi64(half[0], half[1]), _mm256_unpackhi_epi64(half[0], half[1]));
  const __m256i q = fold(_mm256_unpacklo_epi64(half[2], half[3]), _mm256_unpackhi_epi64(half[2], half[3]));
  return (VecU)fold((__m256i)_mm256_shuffle_ps((__m256)p, (__m256)q, 0x88),
                    (__m256i)_mm256_shuffle_ps((__m256)p, (__m256)q, 0xdd));
}
#endif
TW_INLINE VecU lane_maxima(const VecU* v) {
  return folded_lanes(v, [](NativeI a, NativeI b) TW_INLINE_LAMBDA { return TW_V(max_epu32)(a, b); });
}
TW_INLINE VecF lane_sums(const VecF* v) {
  const auto add = [](NativeI a, NativeI b) TW_INLINE_LAMBDA { return (NativeI)TW_V(add_ps)((NativeF)a, (NativeF)b); };
  return (VecF)folded_lanes((const VecU*)v, add);
}

TW_INLINE VecU largest_key(const float* x, int64_t n) {
  VecU a{}, b{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = vmax_u(a, key_of(load(x + i)));
    b = vmax_u(b, key_of(load(x + i + kLanes)));
  }
  if (i + kLanes <= n) {
    a = vmax_u(a, key_of(load(x + i)));
    i += kLanes;
  }
  if (i < n) b = vmax_u(b, key_of(load_first(x + i, n - i)));
  return vmax_u(a, b);
}

// keys[b] = largest key of block b; zeros up to the next multiple of kLanes. Returns the number of blocks. Fixed: the
// block where the compiler is to know it, else 0.
template <int Fixed>
TW_INLINE int64_t block_keys_of(const float* x, int64_t n, int64_t block, uint32_t* keys) {
  const int64_t size = Fixed > 0 ? Fixed : block;
  const int64_t blocks = (n + size - 1) / size;
  for (int64_t b = 0; b < blocks; b += kLanes) {
    VecU best[kLanes];
    if ((b + kLanes) * size <= n) {
      for (int j = 0; j < kLanes; ++j) best[j] = largest_key(x + (b + j) * size, size);
    } else {
      for (int j = 0; j < kLanes; ++j) {
        const int64_t first = (b + j) * size, left = n - first;
        best[j] = left > 0 ? largest_key(x + first, left < size ? left : size) : VecU{};
      }
    }
    store_u(keys + b, lane_maxima(best));
  }
  return blocks;
}
TW_INLINE int64_t block_keys(const float* x, int64_t n, int64_t block, uint32_t* keys) {
  if (block == 128) return block_keys_of<128>(x, n, block, keys);
  if (block == 32) return block_keys_of<32>(x, n, block, keys);
  return block_keys_of<0>(x, n, block, keys);
}

// ---- 64 codes ------------------------------------------------------------------------------------------------------
// 64 signed bytes in the order of their elements.
struct Codes {
#ifdef __AVX512F__
  __m512i all;
#else
  __m256i low, high;
#endif
};

// Saturates to [-128, 127].
TW_INLINE Codes narrow(const VecI* q) {
#ifdef __AVX512F__
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i a = _mm512_packs_epi32((__m512i)q[0], (__m512i)q[1]);
  const __m512i b = _mm512_packs_epi32((__m512i)q[2], (__m512i)q[3]);
  return {_mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b))};
#else
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto half = [&](const VecI* p) TW_INLINE_LAMBDA {
    const __m256i a = _mm256_packs_epi32((__m256i)p[0], (__m256i)p[1]);
    const __m256i b = _mm256_packs_epi32((__m256i)p[2], (__m256i)p[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
  };
  return {half(q), half(q + 4)};
#endif
}
TW_INLINE Codes bounded(Codes c, int8_t lowest, int8_t highest) {
#ifdef __AVX512F__
  return {_mm512_min_epi8(_mm512_max_epi8(c.all, _mm512_set1_epi8(lowest)), _mm512_set1_epi8(highest))};
#else
  const __m256i lo = _mm256_set1_epi8(lowest), hi = _mm256_set1_epi8(highest);
  return {_mm256_min_epi8(_mm256_max_epi8(c.low, lo), hi), _mm256_min_epi8(_mm256_max_epi8(c.high, lo), hi)};
#endif
}

// Four codes of three bits in each of four words become six bytes, in the low half.
TW_INLINE __m128i three_bits(__m128i words) {
  const __m128i eights = _mm_or_si128(words, _mm_srli_epi64(words, 20));  // in the low 24 bits of each half
  return _mm_shuffle_epi8(eights, _mm_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
}
// 24 bytes of four times six; each store reaches into the next one's place, but for the last.
TW_INLINE void store_three_bits(uint8_t* out, __m128i a, __m128i b, __m128i c, __m128i d) {
  _mm_storel_epi64((__m128i*)out, three_bits(a));
  _mm_storel_epi64((__m128i*)(out + 6), three_bits(b));
  _mm_storel_epi64((__m128i*)(out + 12), three_bits(c));
  const __m128i last = three_bits(d);
  const int32_t four = _mm_cvtsi128_si32(last);
  const auto two = (uint16_t)_mm_extract_epi16(last, 2);
  __builtin_memcpy(out + 18, &four, 4);
  __builtin_memcpy(out + 22, &two, 2);
}
// Writes the low Bits bits of each code: 8 * Bits bytes, first code in the low bits.
template <int Bits>
TW_INLINE void store_codes(uint8_t* out, Codes c) {
#ifdef __AVX512F__
  if constexpr (Bits == 8) {
    _mm512_storeu_si512(out, c.all);
  } else {
    const __m512i v = _mm512_and_si512(c.all, _mm512_set1_epi8((1 << Bits) - 1));
    const __m512i pairs = _mm512_maddubs_epi16(v, _mm512_set1_epi16((int16_t)(1 | (1 << Bits) << 8)));
    if constexpr (Bits == 4) {
      _mm256_storeu_si256((__m256i*)out, _mm512_cvtepi16_epi8(pairs));
    } else {
      const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(1 | (1 << 2 * Bits) << 16));
      if constexpr (Bits == 3) {
        store_three_bits(out, _mm512_castsi512_si128(fours), _mm512_extracti32x4_epi32(fours, 1),
                         _mm512_extracti32x4_epi32(fours, 2), _mm512_extracti32x4_epi32(fours, 3));
      } else if constexpr (Bits == 2) {
        _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8(fours));
      } else {
        const __m512i squeeze =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
        const __m512i order = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
        _mm512_mask_storeu_epi32(out, 0x0fff, _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(fours, squeeze)));
      }
    }
  }
#else
  if constexpr (Bits == 8) {
    _mm256_storeu_si256((__m256i*)out, c.low);
    _mm256_storeu_si256((__m256i*)(out + 32), c.high);
  } else {
    const __m256i mask = _mm256_set1_epi8((1 << Bits) - 1);
    const __m256i weights = _mm256_set1_epi16((int16_t)(1 | (1 << Bits) << 8));
    const __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(c.low, mask), weights);
    const __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(c.high, mask), weights);
    if constexpr (Bits == 4) {
      _mm256_storeu_si256((__m256i*)out, _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8));
    } else {
      const __m256i weights2 = _mm256_set1_epi32(1 | (1 << 2 * Bits) << 16);
      const __m256i fa = _mm256_madd_epi16(a, weights2), fb = _mm256_madd_epi16(b, weights2);
      if constexpr (Bits == 3) {
        store_three_bits(out, _mm256_castsi256_si128(fa), _mm256_extracti128_si256(fa, 1), _mm256_castsi256_si128(fb),
                         _mm256_extracti128_si256(fb, 1));
      } else if constexpr (Bits == 2) {
        const __m256i words = _mm256_packs_epi32(fa, fb);
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
        _mm_storeu_si128((__m128i*)out, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
      } else {
        const __m256i squeeze =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
        const __m256i order = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
        const __m256i first_six = _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, 0, 0);
        _mm256_maskstore_epi32((int*)out, first_six,
                               _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(fa, squeeze), order));
        _mm256_maskstore_epi32((int*)(out + 24), first_six,
                               _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(fb, squeeze), order));
      }
    }
  }
#endif
}

// ---- codes of one vector -------------------------------------------------------------------------------------------
// kLanes codes from kLanes * Bits / 8 bytes, in the low bits of each lane; bits above are rubbish unless Bits is 8.
template <int Bits>
TW_INLINE VecU loose_codes(const uint8_t* p) {
#ifdef __AVX512F__
  if constexpr (Bits == 8) {
    return (VecU)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  } else if constexpr (Bits == 4) {  // a 64-bit lane: byte b in the low half, b >> 4 in the low bits of the high half
    const __m512i v = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)p));
    return (VecU)_mm512_or_si512(v, _mm512_slli_epi64(v, 28));
  } else if constexpr (Bits == 2) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    const __m512i shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return (VecU)_mm512_srlv_epi32(_mm512_set1_epi32(word), shifts);
  } else if constexpr (Bits == 3) {
    // Not three bytes into a word of zeros: it would be read before they are there.
    uint32_t low;
    uint16_t rest;
    __builtin_memcpy(&low, p, 4);
    __builtin_memcpy(&rest, p + 4, 2);
    const auto high = (int32_t)(low >> 24 | (uint32_t)rest << 8);
    const __m512i words = _mm512_inserti64x4(_mm512_set1_epi32((int32_t)low), _mm256_set1_epi32(high), 1);
    return (VecU)_mm512_srlv_epi32(words, _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 0, 3, 6, 9, 12, 15, 18, 21));
  } else {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_maskz_loadu_epi8(0x0fff, p));
    const __m512i pick = _mm512_setr_epi32(0x0100, 0x0100, 0x0201, 0x0302, 0x0403, 0x0403, 0x0504, 0x0605, 0x0706,
                                           0x0706, 0x0807, 0x0908, 0x0a09, 0x0a09, 0x0b0a, 0x0c0b);
    const __m512i shifts = _mm512_setr_epi32(0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2);
    return (VecU)_mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, pick), shifts);
  }
#else
  if constexpr (Bits == 8) {
    return (VecU)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  } else if constexpr (Bits == 4) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    const __m256i v = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(word));
    return (VecU)_mm256_or_si256(v, _mm256_slli_epi64(v, 28));
  } else if constexpr (Bits == 2) {
    uint16_t word;
    __builtin_memcpy(&word, p, 2);
    return (VecU)_mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
  } else if constexpr (Bits == 3) {
    uint16_t low;
    __builtin_memcpy(&low, p, 2);
    const int32_t word = low | p[2] << 16;
    return (VecU)_mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21));
  } else {
    int32_t low;
    uint16_t high;
    __builtin_memcpy(&low, p, 4);
    __builtin_memcpy(&high, p + 4, 2);
    const __m128i six = _mm_insert_epi16(_mm_cvtsi32_si128(low), high, 2);
    const __m256i pick = _mm256_setr_epi32(0x0100, 0x0100, 0x0201, 0x0302, 0x0403, 0x0403, 0x0504, 0x0605);
    const __m256i shifts = _mm256_setr_epi32(0, 6, 4, 2, 0, 6, 4, 2);
    return (VecU)_mm256_srlv_epi32(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(six), pick), shifts);
  }
#endif
}
template <int Bits>
TW_INLINE VecI signed_codes(const uint8_t* p) {
#ifdef __AVX512F__
  if constexpr (Bits == 8) return (VecI)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#else
  if constexpr (Bits == 8) return (VecI)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#endif
  return (VecI)(loose_codes<Bits>(p) << (32 - Bits)) >> (32 - Bits);
}

// ---- loops over units ----------------------------------------------------------------------------------------------
// Where the factor of vector j of a unit comes from.
struct OneScale {  // all of them in one block
  VecF v;
  VecF values;  // of a table: what code lane i decodes to (16 lanes only)
  TW_INLINE VecF at(int) const { return v; }
};
template <int Block>
struct FewScales {  // blocks of 16 or 32
  const float* p;
  TW_INLINE VecF at(int j) const { return splat(p[j * kLanes / Block]); }
};
struct ManyScales {  // one per element
  const float* p;
  TW_INLINE VecF at(int j) const { return load(p + j * kLanes); }
};

// out[i] = per_block[block of element first + i]
TW_INLINE void spread(const float* per_block, int64_t block, int64_t first, int64_t n, float* out) {
  int64_t b = first / block, left = block - first % block;
  for (int64_t i = 0; i < n; ++b, left = block) {
    const int64_t stop = i + left < n ? i + left : n;
    const float v = per_block[b];
    for (; i < stop; ++i) out[i] = v;
  }
}

// Codes of the n elements of a group: body.unit(x, scales, i) -> Codes of 64 elements from element i of the
// group on. `factors`: per block.
template <int Bits, typename Body>
TW_INLINE void encode_units(const float* x, int64_t n, int64_t block, const float* factors, uint8_t* out, Body& body) {
  constexpr int64_t kBytes = kUnit * Bits / 8;
  const int64_t whole = n / kUnit * kUnit;
  if (block % kUnit == 0) {
    for (int64_t first = 0, b = 0; first < whole; first += block, ++b) {
      const int64_t stop = first + block < whole ? first + block : whole;
      const OneScale scales{splat(factors[b]), VecF{}};
      for (int64_t i = first; i < stop; i += kUnit)
        store_codes<Bits>(out + i / kUnit * kBytes, body.unit(x + i, scales, i));
    }
  } else if (block == 32) {
    for (int64_t u = 0; u < whole / kUnit; ++u)
      store_codes<Bits>(out + u * kBytes, body.unit(x + u * kUnit, FewScales<32>{factors + u * 2}, u * kUnit));
  } else if (block == 16) {
    for (int64_t u = 0; u < whole / kUnit; ++u)
      store_codes<Bits>(out + u * kBytes, body.unit(x + u * kUnit, FewScales<16>{factors + u * 4}, u * kUnit));
  } else {
    float each[kChunk];
    for (int64_t first = 0; first < whole; first += kChunk) {
      const int64_t count = whole - first < kChunk ? whole - first : kChunk;
      spread(factors, block, first, count, each);
      for (int64_t i = 0; i < count; i += kUnit)
        store_codes<Bits>(out + (first + i) / kUnit * kBytes,
                          body.unit(x + first + i, ManyScales{each + i}, first + i));
    }
  }
  if (whole < n) {
    float last[kUnit] = {}, each[kUnit] = {};
    uint8_t bytes[kBytes];
    for (int64_t i = whole; i < n; ++i) last[i - whole] = x[i];
    spread(factors, block, whole, n - whole, each);
    store_codes<Bits>(bytes, body.unit(last, ManyScales{each}, whole));
    uint8_t* p = out + whole / kUnit * kBytes;
    const int64_t used = (n - whole) * Bits;  // bits; those behind them are zero
    for (int64_t i = 0; i < (used + 7) / 8; ++i) p[i] = bytes[i];
    if (used % 8 != 0) p[used / 8] &= (uint8_t)((1 << used % 8) - 1);
  }
}

template <bool Add, int Bits, typename Body, typename Scales>
TW_INLINE void decode_unit(const uint8_t* in, float* out, const Body& body, const Scales& scales, int64_t i) {
  for (int j = 0; j < kUnitVectors; ++j) {
    const VecF v = body.vector(in + j * kLanes * Bits / 8, scales, j, i + j * kLanes);
    store(out + j * kLanes, Add ? load(out + j * kLanes) + v : v);
  }
}

// out = or += body.vector(bytes, scales, j, element) over the n elements of a group; body.values(step) is the table of
// OneScale.
template <bool Add, int Bits, typename Body>
TW_INLINE void decode_units_as(const uint8_t* in, int64_t n, int64_t block, const float* steps, float* out,
                               const Body& body) {
  constexpr int64_t kBytes = kUnit * Bits / 8;
  const int64_t whole = n / kUnit * kUnit;
  if (block % kUnit == 0) {
    for (int64_t first = 0, b = 0; first < whole; first += block, ++b) {
      const int64_t stop = first + block < whole ? first + block : whole;
      const VecF step = splat(steps[b]);
      const OneScale scales{step, body.values(step)};
      for (int64_t i = first; i < stop; i += kUnit)
        decode_unit<Add, Bits>(in + i / kUnit * kBytes, out + i, body, scales, i);
    }
  } else if (block == 32) {
    for (int64_t u = 0; u < whole / kUnit; ++u)
      decode_unit<Add, Bits>(in + u * kBytes, out + u * kUnit, body, FewScales<32>{steps + u * 2}, u * kUnit);
  } else if (block == 16) {
    for (int64_t u = 0; u < whole / kUnit; ++u)
      decode_unit<Add, Bits>(in + u * kBytes, out + u * kUnit, body, FewScales<16>{steps + u * 4}, u * kUnit);
  } else {
    float each[kChunk];
    for (int64_t first = 0; first < whole; first += kChunk) {
      const int64_t count = whole - first < kChunk ? whole - first : kChunk;
      spread(steps, block, first, count, each);
      for (int64_t i = 0; i < count; i += kUnit)
        decode_unit<Add, Bits>(in + (first + i) / kUnit * kBytes, out + first + i, body, ManyScales{each + i},
                               first + i);
    }
  }
  if (whole < n) {
    float last[kUnit], each[kUnit] = {};
    uint8_t bytes[kBytes] = {};
    const uint8_t* p = in + whole / kUnit * kBytes;
    for (int64_t i = 0; i < ((n - whole) * Bits + 7) / 8; ++i) bytes[i] = p[i];
    spread(steps, block, whole, n - whole, each);
    decode_unit<false, Bits>(bytes, last, body, ManyScales{each}, whole);
    for (int64_t i = whole; i < n; ++i) out[i] = Add ? out[i] + last[i - whole] : last[i - whole];
  }
}
template <int Bits, typename Body>
TW_INLINE void decode_units(const uint8_t* in, int64_t n, int64_t block, const float* steps, float* out,
                            bool accumulate, const Body& body) {
  if (accumulate) return decode_units_as<true, Bits>(in, n, block, steps, out, body);
  decode_units_as<false, Bits>(in, n, block, steps, out, body);
}

}  // namespace
}  // namespace thinwire::TW_ISA
