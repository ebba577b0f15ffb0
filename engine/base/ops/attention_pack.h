// How rows of heads become tiles of 32-bit words and back, for the attention kernels only; and 2^x.
#pragma once

#include <utility>

#include "engine/base/ops/attention_kernel.h"
#include "engine/base/ops/attention_tile.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// Elements as floats, whatever their type in memory.
template <typename T>
struct FloatForm {
  using Element = T;
  using Multiply = MultiplyFloats;
  static constexpr int64_t kPack = 1;  // elements in a word
};
#ifdef __AVX512BF16__
// bf16 kept as it is, two to a word.
struct PairForm {
  using Element = Bf16;
  using Multiply = MultiplyPairs;
  static constexpr int64_t kPack = 2;
};
#endif

// Calls body with the form that elements of `dtype` take.
template <class Body>
TW_INLINE auto with_form(DType dtype, const Body& body) {
  if (dtype == DType::f32) return body(FloatForm<float>());
  if (dtype == DType::f16) return body(FloatForm<Fp16>());
#ifdef __AVX512BF16__
  return body(PairForm());
#else
  return body(FloatForm<Bf16>());
#endif
}

// Words of a packed row of d elements, whole vectors; and floats of a row of d sums, whole vectors.
template <class Form>
TW_INLINE int64_t row_words(int64_t d) {
  return round_up((d + Form::kPack - 1) / Form::kPack, kLanes);
}
TW_INLINE int64_t row_floats(int64_t d) {
  return round_up(d, kLanes);
}

// Cuts scratch memory into pieces on 64-byte lines; with a null base it only counts.
struct Cutter {
  char* base;
  int64_t used = 0;
  TW_INLINE float* take(int64_t floats) {
    float* piece = base == nullptr ? nullptr : (float*)(base + used);
    used += round_up(floats * 4, 64);
    return piece;
  }
};

TW_INLINE void fill(float* p, int64_t n, float value) {  // n: whole vectors
  for (int64_t i = 0; i < n; i += kLanes) store(p + i, splat(value));
}

// Asks for the cache lines of [p + ahead, p + ahead + n): the same rows of the next group, which this thread packs
// next. The rows are a token apart, too far for the hardware to guess. Any address is harmless, 0 asks for nothing.
template <typename T>
TW_INLINE void prefetch_row(const T* p, int64_t ahead, int64_t n) {
  if (ahead == 0) return;
  const uintptr_t first = (uintptr_t)p + (uintptr_t)(ahead * (int64_t)sizeof(T));
  const uintptr_t bytes = (uintptr_t)n * sizeof(T);
  for (uintptr_t byte = 0; byte < bytes; byte += 64) _mm_prefetch((const char*)(first + byte), _MM_HINT_T1);
}

// dst[i][...] = row i of src, neighbours along the row in a word, zero behind d.
template <class Form>
TW_INLINE void pack_rows(const typename Form::Element* src, int64_t stride, int64_t n, int64_t d, Word* dst,
                         int64_t ahead = 0) {
  const int64_t ld = row_words<Form>(d);
  for (int64_t i = 0; i < n; ++i, src += stride, dst += ld) {
    prefetch_row(src, ahead, d);
#ifdef __AVX512BF16__
    if constexpr (Form::kPack == 2) {
      for (int64_t w = 0; w < ld; w += kLanes) {
        const int64_t left = d - 2 * w;
        const __mmask32 mask = left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1u;
        store(dst + w, (VecF)_mm512_maskz_loadu_epi16(mask, src + 2 * w));
      }
      continue;
    }
#endif
    int64_t e = 0;
    for (; e + kLanes <= d; e += kLanes) store(dst + e, load(src + e));
    if (e < d) store(dst + e, load_first(src + e, d - e));
  }
}

// dst[i / pack][e]: neighbours along the rows' index in a word, zero behind d and behind the last row. The same as
// pack_rows where a word holds one element.
template <class Form>
TW_INLINE void pack_steps(const typename Form::Element* src, int64_t stride, int64_t n, int64_t d, Word* dst,
                          int64_t ahead = 0) {
#ifdef __AVX512BF16__
  if constexpr (Form::kPack == 2) {
    const int64_t ld = row_floats(d);
    for (int64_t i = 0; i < n; i += 2, src += 2 * stride, dst += ld) {
      prefetch_row(src, ahead, d);
      prefetch_row(src + stride, ahead, d);
      for (int64_t e = 0; e < ld; e += kLanes) {
        const __mmask16 mask = d - e >= 16 ? 0xffffu : (1u << (d - e)) - 1u;
        const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src + e));
        const __m512i odd =
            i + 1 < n ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src + stride + e)) : __m512i{};
        store(dst + e, (VecF)_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
    }
    return;
  }
#endif
  pack_rows<Form>(src, stride, n, d, dst, ahead);
}

// Lane l of an exchange: of the second row (l and above kLanes) where bit `kStep` of the lane's number asks for it.
template <int kStep>
constexpr int low_lane(int l) {
  return (l & kStep) != 0 ? kLanes + l - kStep : l;
}
template <int kStep>
constexpr int high_lane(int l) {
  return (l & kStep) != 0 ? kLanes + l : l + kStep;
}
template <int kStep, int... kLane>
TW_INLINE void exchange(VecF (&rows)[kLanes], std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    if ((r & kStep) != 0) continue;
    const VecF a = rows[r], b = rows[r + kStep];
    rows[r] = shuffled<low_lane<kStep>(kLane)...>(a, b);
    rows[r + kStep] = shuffled<high_lane<kStep>(kLane)...>(a, b);
  }
}

// rows[r] becomes column r, in place: log2(kLanes) rounds that exchange one bit of the row's number with one of the
// lane's.
template <int kStep = 1>
TW_INLINE void transpose_vectors(VecF (&rows)[kLanes]) {
  exchange<kStep>(rows, std::make_integer_sequence<int, kLanes>());
  if constexpr (2 * kStep < kLanes) transpose_vectors<2 * kStep>(rows);
}

// dst[w][t] = src[t][w]: n rows of ld words become ld rows of `strip` words; columns n and up to the next whole vector
// are zero.
TW_INLINE void transpose_rows(const Word* src, int64_t ld, int64_t n, Word* dst, int64_t strip) {
  for (int64_t t = 0; t < n; t += kLanes) {
    const int64_t count = smaller(kLanes, n - t);
    for (int64_t w = 0; w < ld; w += kLanes) {
      VecF rows[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) rows[r] = r < count ? load(src + (t + r) * ld + w) : VecF{};
      transpose_vectors(rows);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) store(dst + (w + r) * strip + t, rows[r]);
    }
  }
}

// dst[e] = or += row[e] * factor for e < d, rounded once.
template <typename T>
TW_INLINE void write_row(const float* row, int64_t d, float factor, T* dst, bool add) {
  int64_t e = 0;
  for (; e + kLanes <= d; e += kLanes) {
    const VecF value = load(row + e) * splat(factor);
    store(dst + e, add ? load(dst + e) + value : value);
  }
  if (e == d) return;
  const VecF value = load(row + e) * splat(factor);
  store_first(dst + e, add ? load_first(dst + e, d - e) + value : value, d - e);
}
// row[e] = src[e] for e < d.
template <typename T>
TW_INLINE void read_row(const T* src, int64_t d, float* row) {
  int64_t e = 0;
  for (; e + kLanes <= d; e += kLanes) store(row + e, load(src + e));
  if (e < d) store_first(row + e, load_first(src + e, d - e), d - e);
}
// Calls body with the elements of `view` behind the first `at`, of the form's type or fp32.
template <class Form, class Body>
TW_INLINE void with_sums(const View& view, int64_t at, const Body& body) {
  if (view.dtype == DType::f32)
    body((float*)view.data + at);
  else
    body((typename Form::Element*)view.data + at);
}

TW_INLINE int64_t head_start(const HeadLayout& at, int64_t batch, int64_t token, int64_t group, int64_t head) {
  return at.offset + batch * at.batch + token * at.token + group * at.group + head * at.head;
}
template <typename T>
TW_INLINE const T* head_at(const void* base, const HeadLayout& at, int64_t batch, int64_t token, int64_t group,
                           int64_t head) {
  return (const T*)base + head_start(at, batch, token, group, head);
}

// 2^x to about 1 ulp; 0 below -127, +inf from 128 on, NaN stays NaN. The fraction lies in [0, 1): degree-6 minimax
// polynomial of relative error 2e-9, exactly 1 at 0.
TW_INLINE VecF vexp2(VecF x) {
#ifdef __AVX512F__
  const VecF r =
      (VecF)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x); 0 for infinities
#else
  x = vmin(splat(128.0f), vmax(splat(-127.0f), x));  // in this order of operands NaN comes through
  const VecF n = (VecF)_mm256_floor_ps((__m256)x);
  const VecF r = x - n;
#endif
  VecF p = splat(0x1.c541780p-13f);
  p = fma(p, r, splat(0x1.46d64c0p-10f));
  p = fma(p, r, splat(0x1.3d0b920p-7f));
  p = fma(p, r, splat(0x1.c689120p-5f));
  p = fma(p, r, splat(0x1.ebfd580p-3f));
  p = fma(p, r, splat(0x1.62e42c0p-1f));
  p = fma(p, r, splat(1.0f));
#ifdef __AVX512F__
  return (VecF)_mm512_scalef_ps((__m512)p, (__m512)x);  // p * 2^floor(x)
#else
  return p * (VecF)((__builtin_convertvector(n, VecI) + 127) << 23);
#endif
}

#ifdef __AVX512BF16__
// Words of (low, high) pairs, each rounded to the nearest bf16.
TW_INLINE VecF round_pairs(VecF low, VecF high) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  alignas(64) static constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (VecF)_mm512_permutexvar_epi16(_mm512_load_si512(order), halves);
}
#endif

}  // namespace
}  // namespace thinwire::TW_ISA
