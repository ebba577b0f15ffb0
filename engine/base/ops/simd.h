// Vectors of floats for kernels. Included only by *_kernel.cpp files, which are compiled once per instruction set with
// TW_ISA naming the namespace; everything is in an anonymous namespace and always inlined, so that no code compiled for
// a newer instruction set can be picked by the linker for an older machine. For the same reason kernel files use no std
// templates beyond constexpr ones, and call no inline function of other headers that is not always inlined.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "engine/base/core/dtype.h"

#ifndef TW_ISA
#error "kernel files are compiled once per instruction set with -DTW_ISA=<namespace>"
#endif
#define TW_INLINE [[gnu::always_inline]] inline

namespace thinwire::TW_ISA {
namespace {

// TW_V(add_ps) is the intrinsic of this set's vectors, TW_HALF(add_ps) that of half as wide ones, where the two names
// differ in their width alone; Native... are the types that they take.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#define TW_V(name) _mm512_##name
#define TW_HALF(name) _mm256_##name
typedef __m512 NativeF;
typedef __m512d NativeD;
typedef __m512i NativeI;
typedef __m256i HalfI;
#else
constexpr int kLanes = 8;
#define TW_V(name) _mm256_##name
#define TW_HALF(name) _mm_##name
typedef __m256 NativeF;
typedef __m256d NativeD;
typedef __m256i NativeI;
typedef __m128i HalfI;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4), may_alias));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4), may_alias));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4), may_alias));
constexpr int kWide = kLanes / 2;  // doubles in a vector
typedef double VecD __attribute__((vector_size(kLanes * 4), may_alias));

TW_INLINE VecF splat(float v) {
  return VecF{} + v;
}
// These lanes of a (0 to kLanes - 1) and b (from kLanes on).
template <int... kLane>
TW_INLINE VecF shuffled(VecF a, VecF b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, kLane...);
#else  // GCC 11
  return __builtin_shuffle(a, b, VecI{kLane...});
#endif
}
TW_INLINE VecI splat_i(int32_t v) {
  return VecI{} + v;
}
// 0, 1, 2, ...
TW_INLINE VecI lane_numbers() {
  VecI v;
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) v[l] = l;
  return v;
}

TW_INLINE HalfI load_half(const void* p) {
  HalfI v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
TW_INLINE void store_half(void* p, HalfI v) {
  __builtin_memcpy(p, &v, sizeof v);
}
TW_INLINE VecF load(const float* p) {
  return (VecF)TW_V(loadu_ps)(p);
}
TW_INLINE VecD load_wide(const float* p) {
  return (VecD)TW_V(cvtps_pd)(TW_HALF(loadu_ps)(p));
}
TW_INLINE void store(float* p, VecF v) {
  TW_V(storeu_ps)(p, (NativeF)v);
}
TW_INLINE VecF load(const Bf16* p) {
  return (VecF)TW_V(slli_epi32)(TW_V(cvtepu16_epi32)(load_half(p)), 16);
}
TW_INLINE VecF load(const Fp16* p) {
  return (VecF)TW_V(cvtph_ps)(load_half(p));
}
TW_INLINE void store(Fp16* p, VecF v) {
  store_half(p, TW_V(cvtps_ph)((NativeF)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TW_INLINE VecF fma(VecF a, VecF b, VecF c) {
  return (VecF)TW_V(fmadd_ps)((NativeF)a, (NativeF)b, (NativeF)c);
}
TW_INLINE VecF vmax(VecF a, VecF b) {
  return (VecF)TW_V(max_ps)((NativeF)a, (NativeF)b);
}
TW_INLINE VecF vmin(VecF a, VecF b) {
  return (VecF)TW_V(min_ps)((NativeF)a, (NativeF)b);
}
TW_INLINE VecF vsqrt(VecF a) {
  return (VecF)TW_V(sqrt_ps)((NativeF)a);
}
#ifdef __AVX512F__
TW_INLINE void store(Bf16* p, VecF v) {  // nearest even; NaN stays NaN
  const __m512i u = (__m512i)v;
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
}
TW_INLINE VecF vround(VecF a) {
  return (VecF)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
TW_INLINE void store(Bf16* p, VecF v) {
  const __m256i u = (__m256i)v;
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = (__m256i)_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q);
  r = _mm256_blendv_epi8(r, _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40)), nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
TW_INLINE VecF vround(VecF a) {
  return (VecF)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#endif

// The first n lanes (0 < n < kLanes) from memory, the rest `fill`; and the store of the first n lanes. Memory behind
// the n elements is not touched. Like whole vectors they may lie at any address (payloads do): no T is read in place.
template <typename T>
TW_INLINE VecF load_first(const T* p, int64_t n, float fill = 0.0f) {
  alignas(64) T buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(buffer + i, reinterpret_cast<const char*>(p) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  VecF v = load(buffer);
  for (int64_t i = n; i < kLanes; ++i) v[i] = fill;
  return v;
}
template <typename T>
TW_INLINE void store_first(T* p, VecF v, int64_t n) {
  alignas(64) T buffer[kLanes];
  store(buffer, v);
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(reinterpret_cast<char*>(p) + i * static_cast<int64_t>(sizeof(T)), buffer + i, sizeof(T));
}
#ifdef __AVX512F__
TW_INLINE __mmask16 first_lanes(int64_t n) {
  return (__mmask16)((1u << n) - 1u);
}
// GCC 12 may spill a mask as 16 bits and read 32 back (sanitized builds did): as a number it waits in a general
// register.
TW_INLINE uint32_t bits_of(__mmask16 mask) {
  uint32_t bits = mask;
  asm("" : "+r"(bits));
  return bits;
}
TW_INLINE VecF load_first(const float* p, int64_t n, float fill = 0.0f) {
  return (VecF)_mm512_mask_loadu_ps((__m512)splat(fill), first_lanes(n), p);
}
TW_INLINE VecF load_first(const Bf16* p, int64_t n, float fill = 0.0f) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  return (VecF)_mm512_mask_slli_epi32((__m512i)splat(fill), first_lanes(n), wide, 16);
}
TW_INLINE VecF load_first(const Fp16* p, int64_t n, float fill = 0.0f) {
  return (VecF)_mm512_mask_cvtph_ps((__m512)splat(fill), first_lanes(n), _mm256_maskz_loadu_epi16(first_lanes(n), p));
}
TW_INLINE void store_first(float* p, VecF v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), (__m512)v);
}
#endif

// One loop body for whole vectors and for the ragged end: body(part, i, n) is called with part = Whole and n = kLanes,
// or with part = Ragged and 0 < n < kLanes; load_at and store_at pick the access by its type. Lambdas passed as body
// carry TW_INLINE_LAMBDA behind their parameters.
#define TW_INLINE_LAMBDA __attribute__((always_inline))
struct Whole {};
struct Ragged {};
template <typename T>
TW_INLINE VecF load_at(Whole, const T* p, int64_t, float = 0.0f) {
  return load(p);
}
template <typename T>
TW_INLINE VecF load_at(Ragged, const T* p, int64_t n, float fill = 0.0f) {
  return load_first(p, n, fill);
}
template <typename T>
TW_INLINE void store_at(Whole, T* p, VecF v, int64_t) {
  store(p, v);
}
template <typename T>
TW_INLINE void store_at(Ragged, T* p, VecF v, int64_t n) {
  store_first(p, v, n);
}
// Stores that leave the caches alone, to places that begin with whole vectors; end_streams() behind the last of them,
// before anybody else may read.
TW_INLINE bool can_stream(const float* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(VecF) == 0;
}
TW_INLINE void stream_at(Whole, float* p, VecF v, int64_t) {
  TW_V(stream_ps)(p, (NativeF)v);
}
TW_INLINE void stream_at(Ragged, float* p, VecF v, int64_t n) {
  store_first(p, v, n);
}
TW_INLINE void end_streams() {
  _mm_sfence();
}
template <typename Body>
TW_INLINE void for_vectors(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(Whole{}, i, (int64_t)kLanes);
  if (i < count) body(Ragged{}, i, count - i);
}

// Bounds that let NaN through (the vector minimum returns its second operand when one is NaN).
TW_INLINE VecF at_most(VecF v, float limit) {
  return vmin(splat(limit), v);
}
TW_INLINE VecF at_least(VecF v, float limit) {
  return vmax(splat(limit), v);
}

// Sum and maximum over lanes in a fixed tree order.
TW_INLINE float reduce_add(VecF v) {
  alignas(64) float x[kLanes];
  store(x, v);
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) x[i] += x[i + n];
  }
  return x[0];
}
TW_INLINE float reduce_max(VecF v) {
  alignas(64) float x[kLanes];
  store(x, v);
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
  }
  return x[0];
}

// e^x to about 1 ulp (Cody-Waite reduction, degree-6 polynomial); 0 below -87.34, +inf above 88.73, NaN stays NaN.
TW_INLINE VecF vexp(VecF x) {
#ifdef __AVX512F__
  x = at_most(x, 89.0f);  // above it the reduction runs out of digits
#endif
  const VecF n = vround(x * splat(1.44269504088896341f));
  VecF r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  VecF p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p * r, r, r) + splat(1.0f);
#ifdef __AVX512F__
  // One instruction multiplies by 2^n with all its edges; the comparison lets NaN through.
  const __mmask16 visible = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3365f), _CMP_NLT_UQ);
  return (VecF)_mm512_maskz_scalef_ps(visible, (__m512)p, (__m512)n);
#else
  // 2^n in two halves, so that n = 128 and n = -126 do not leave the exponent's range.
  const VecF clamped = vmin(vmax(n, splat(-252.0f)), splat(252.0f));
  const VecI k = __builtin_convertvector(clamped, VecI);
  const VecI half = k >> 1;
  const VecF scale1 = (VecF)((half + 127) << 23);
  const VecF scale2 = (VecF)((k - half + 127) << 23);
  VecF result = p * scale1 * scale2;
  result = x < splat(-87.3365f) ? VecF{} : result;
  result = x > splat(88.7228f) ? splat(__builtin_inff()) : result;
  return x != x ? x : result;
#endif
}

}  // namespace
}  // namespace thinwire::TW_ISA
