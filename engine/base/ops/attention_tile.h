// Register-blocked products of small tiles, for the attention kernels only.
//
// A tile is made of 32-bit words: a float, or a pair of bf16 that are neighbours along the summed dimension. Both kinds
// share all code but the multiply-add, which for pairs is the bf16 dot product (fp32 accumulation).
#pragma once

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

typedef float Word __attribute__((may_alias));

// The same bits in every lane: no arithmetic touches a word, which may be a pair.
TW_INLINE VecF spread(const Word* p) {
#ifdef __AVX512F__
  return (VecF)_mm512_set1_ps(*p);
#else
  return (VecF)_mm256_broadcast_ss((const float*)p);
#endif
}

#ifdef __AVX512F__
constexpr int kBlockRows = 6, kBlockVectors = 4;  // 24 accumulators + 4 + 1 of 32 registers
#else
constexpr int kBlockRows = 6, kBlockVectors = 2;  // 12 accumulators + 2 + 1 of 16 registers
#endif

struct MultiplyFloats {
  TW_INLINE static VecF add(VecF sum, VecF a, VecF b) { return fma(a, b, sum); }
};
#ifdef __AVX512BF16__
struct MultiplyPairs {
  TW_INLINE static VecF add(VecF sum, VecF a, VecF b) {
    return (VecF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

TW_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
TW_INLINE int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
TW_INLINE int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// What becomes of the old content of c.
enum class Merge { kReplace, kAdd, kScale };

// c[m][n] = old + sum over steps of a(m, step) * b[step][n], where a(m, step) is at a[m * a_row + step * a_step] and
// old is 0, c[m][n], or c[m][n] * factor[m].
struct Product {
  const Word* a;
  int64_t a_row, a_step;
  const Word* b;
  int64_t b_step;
  int64_t steps;
  float* c;
  int64_t c_row;
  Merge merge;
  const float* factor;
};

template <class Multiply, int kRows, int kVectors>
[[gnu::noinline]] void product_block(const Product& product) {
  const Product p = product;  // a local copy cannot alias the stores: its fields stay in registers
  VecF sum[kRows][kVectors];
  if (p.merge == Merge::kReplace) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = VecF{};
    }
  } else if (p.merge == Merge::kAdd) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = load(p.c + m * p.c_row + n * kLanes);
    }
  } else {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const VecF factor = spread(p.factor + m);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = load(p.c + m * p.c_row + n * kLanes) * factor;
    }
  }
  const Word* a = p.a;
  const Word* b = p.b;
  const int64_t a_row = p.a_row, a_step = p.a_step, b_step = p.b_step;
  for (int64_t left = p.steps; left > 0; --left) {
    VecF right[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) right[n] = load(b + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const VecF value = spread(a + m * a_row);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = Multiply::add(sum[m][n], value, right[n]);
    }
    a += a_step;
    b += b_step;
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) store(p.c + m * p.c_row + n * kLanes, sum[m][n]);
  }
}

template <class Multiply>
TW_INLINE void product_any(int64_t rows, int64_t vectors, const Product& p) {
  using Block = void (*)(const Product&);
#define TW_ROW(n)                                                                                   \
  {                                                                                                 \
    product_block<Multiply, 1, n>, product_block<Multiply, 2, n>, product_block<Multiply, 3, n>,    \
        product_block<Multiply, 4, n>, product_block<Multiply, 5, n>, product_block<Multiply, 6, n> \
  }
#ifdef __AVX512F__
  static constexpr Block blocks[kBlockVectors][kBlockRows] = {TW_ROW(1), TW_ROW(2), TW_ROW(3), TW_ROW(4)};
#else
  static constexpr Block blocks[kBlockVectors][kBlockRows] = {TW_ROW(1), TW_ROW(2)};
#endif
#undef TW_ROW
  blocks[vectors - 1][rows - 1](p);
}

// Cuts `vectors` into parts of at most kBlockVectors, as even as they can be: calls body(first, count).
template <class Body>
TW_INLINE void for_vector_parts(int64_t vectors, const Body& body) {
  const int64_t parts = (vectors + kBlockVectors - 1) / kBlockVectors;
  for (int64_t part = 0, first = 0; part < parts; ++part) {
    const int64_t count = (vectors - first + parts - part - 1) / (parts - part);
    body(first, count);
    first += count;
  }
}

// The three shapes of product in attention. `shift` says what is visible: key i of the tile to query t when i <= t +
// shift; work on pairs that are invisible as a whole is left out, so such scores are not written.

// scores[i][t] = sum over head elements of keys[i][e] * queries[e][t]; keys: [nk][ld] words, queries: [steps][strip].
template <class Multiply>
TW_INLINE void product_scores(const Word* keys, int64_t ld, const Word* queries, int64_t strip, int64_t steps,
                              int64_t nk, int64_t query_vectors, int64_t shift, float* scores) {
  for_vector_parts(
      query_vectors, [&](int64_t first, int64_t count) __attribute__((always_inline)) {
        for (int64_t i = 0; i < nk; i += kBlockRows) {
          const int64_t begin = larger(first, larger(0, i - shift) / kLanes);
          if (begin >= first + count) break;
          product_any<Multiply>(smaller(kBlockRows, nk - i), first + count - begin,
                                {keys + i * ld, ld, 1, queries + begin * kLanes, strip, steps,
                                 scores + i * strip + begin * kLanes, strip, Merge::kReplace, nullptr});
        }
      });
}

// c[t][e] = old + sum over keys of p[i][t] * b[i][e]; p: [nk / pack][strip] words, b: [nk / pack][ld] words, where a
// word holds `pack` keys; c: [nq][ld].
template <class Multiply>
TW_INLINE void product_queries(const Word* p, int64_t strip, const Word* b, int64_t ld, int64_t pack, int64_t nq,
                               int64_t nk, int64_t shift, float* c, Merge merge, const float* factor) {
  for_vector_parts(
      ld / kLanes, [&](int64_t first, int64_t count) __attribute__((always_inline)) {
        for (int64_t t = 0; t < nq; t += kBlockRows) {
          const int64_t rows = smaller(kBlockRows, nq - t);
          const int64_t visible = smaller(nk, t + rows + shift);
          if (visible <= 0) continue;
          product_any<Multiply>(rows, count,
                                {p + t, 1, strip, b + first * kLanes, ld, (visible + pack - 1) / pack,
                                 c + t * ld + first * kLanes, ld, merge, factor == nullptr ? nullptr : factor + t});
        }
      });
}

// c[i][e] += sum over queries of p[i][t] * b[t][e]; p: [nk][p_row] words, b: [nq / pack][ld] words, where a word holds
// `pack` queries; c: [nk][ld].
template <class Multiply>
TW_INLINE void product_keys(const Word* p, int64_t p_row, const Word* b, int64_t ld, int64_t pack, int64_t nq,
                            int64_t nk, int64_t shift, float* c) {
  for_vector_parts(
      ld / kLanes, [&](int64_t first, int64_t count) __attribute__((always_inline)) {
        for (int64_t i = 0; i < nk; i += kBlockRows) {
          const int64_t skipped = larger(0, i - shift);
          if (skipped >= nq) break;
          const int64_t step = skipped / pack;
          product_any<Multiply>(smaller(kBlockRows, nk - i), count,
                                {p + i * p_row + step, p_row, 1, b + step * ld + first * kLanes, ld,
                                 (nq + pack - 1) / pack - step, c + i * ld + first * kLanes, ld, Merge::kAdd, nullptr});
        }
      });
}

}  // namespace
}  // namespace thinwire::TW_ISA
