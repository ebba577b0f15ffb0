// Low rank's products and the pieces of its orthonormalisation; compiled once per instruction set.
#include "compression/codecs/low_rank_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// Sums of products run in 16 partial sums of floats (8 of doubles) whatever the width of a register.
constexpr int kParts = 16 / kLanes;

#ifdef __AVX512F__
constexpr int kLeftRows = 6, kLeftCols = 4;       // of p, in registers: 24 sums
constexpr int kRightRank = 8, kRightVectors = 3;  // of q
constexpr int kExpandRows = 6, kExpandVectors = 4;
constexpr int kGramRows = 4, kGramCols = 4;
constexpr int kApply = 8;
#else
constexpr int kLeftRows = 3, kLeftCols = 2;
constexpr int kRightRank = 4, kRightVectors = 3;
constexpr int kExpandRows = 4, kExpandVectors = 3;
constexpr int kGramRows = 2, kGramCols = 2;
constexpr int kApply = 4;
#endif
TW_INLINE void store_narrow(float* p, VecD v) {
  TW_HALF(storeu_ps)(p, TW_V(cvtpd_ps)((NativeD)v));
}
TW_INLINE VecD load_d(const double* p) {
  return (VecD)TW_V(loadu_pd)(p);
}
TW_INLINE void store_d(double* p, VecD v) {
  TW_V(storeu_pd)(p, (NativeD)v);
}
TW_INLINE VecD fma_d(VecD a, VecD b, VecD c) {
  return (VecD)TW_V(fmadd_pd)((NativeD)a, (NativeD)b, (NativeD)c);
}
TW_INLINE VecD splat_d(double v) {
  return VecD{} + v;
}

// ---- p = x q

// Columns of x taken at a time: rows of x stay in the first cache while all of q's vectors meet them.
constexpr int64_t kLeftDepth = 512;
// Vectors of q whose sums are kept between such pieces.
constexpr int64_t kLeftRank = 64;

// acc [R * C * 16]: the partial sums of R rows and C vectors, over elements [0, n).
template <int R, int C>
TW_INLINE void left_tile(const float* x, const float* q, int64_t stride, int64_t n, bool begin, float* acc,
                         int64_t acc_row) {
  VecF sum[R][C][kParts];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
      for (int h = 0; h < kParts; ++h) sum[i][c][h] = begin ? VecF{} : load(acc + i * acc_row + c * 16 + h * kLanes);
    }
  }
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
#pragma GCC unroll 2
    for (int h = 0; h < kParts; ++h) {
      VecF b[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) b[c] = load(q + c * stride + k + h * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const VecF a = load(x + i * stride + k + h * kLanes);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sum[i][c][h] = fma(a, b[c], sum[i][c][h]);
      }
    }
  }
  for (int h = 0; h < kParts && k + h * kLanes < n; ++h) {
    const int64_t left = n - k - h * kLanes < kLanes ? n - k - h * kLanes : kLanes;
    const auto at = [&](const float* p) TW_INLINE_LAMBDA { return left == kLanes ? load(p) : load_first(p, left); };
    VecF b[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) b[c] = at(q + c * stride + k + h * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const VecF a = at(x + i * stride + k + h * kLanes);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        // A constant index keeps the sums in registers.
        if constexpr (kParts == 1) {
          sum[i][c][0] = fma(a, b[c], sum[i][c][0]);
        } else {
          if (h == 0)
            sum[i][c][0] = fma(a, b[c], sum[i][c][0]);
          else
            sum[i][c][kParts - 1] = fma(a, b[c], sum[i][c][kParts - 1]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
      for (int h = 0; h < kParts; ++h) store(acc + i * acc_row + c * 16 + h * kLanes, sum[i][c][h]);
    }
  }
}

TW_INLINE float add_16(const float* s) {
  float t[8];
  for (int i = 0; i < 8; ++i) t[i] = s[i] + s[i + 8];
  for (int i = 0; i < 4; ++i) t[i] += t[i + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}

template <int R>
TW_INLINE void left_rows(const float* x, int64_t cols, const float* q, int64_t rank, float* p, int64_t ldp) {
  alignas(64) float acc[R * kLeftRank * 16];
  constexpr int64_t kRow = kLeftRank * 16;
  for (int64_t c0 = 0; c0 < rank; c0 += kLeftRank) {
    const int64_t vectors = rank - c0 < kLeftRank ? rank - c0 : kLeftRank;
    for (int64_t k = 0; k < cols; k += kLeftDepth) {
      const int64_t n = cols - k < kLeftDepth ? cols - k : kLeftDepth;
      int64_t c = 0;
      for (; c + kLeftCols <= vectors; c += kLeftCols)
        left_tile<R, kLeftCols>(x + k, q + (c0 + c) * cols + k, cols, n, k == 0, acc + c * 16, kRow);
      for (; c < vectors; ++c) left_tile<R, 1>(x + k, q + (c0 + c) * cols + k, cols, n, k == 0, acc + c * 16, kRow);
    }
    for (int64_t c = 0; c < vectors; ++c) {
      for (int i = 0; i < R; ++i) p[(c0 + c) * ldp + i] = add_16(acc + i * kRow + c * 16);
    }
  }
}

void left(const float* x, int64_t rows, int64_t cols, const float* q, int64_t rank, float* p, int64_t ldp) {
  int64_t i = 0;
  for (; i + kLeftRows <= rows; i += kLeftRows) left_rows<kLeftRows>(x + i * cols, cols, q, rank, p + i, ldp);
  for (; i < rows; ++i) left_rows<1>(x + i * cols, cols, q, rank, p + i, ldp);
}

// ---- q = x^T p

// Rows of x taken at a time: their pieces stay in the first cache while all of p's vectors meet them.
constexpr int64_t kRightDepth = 32;

template <int C, int V, typename Part>
TW_INLINE void right_tile(Part part, int64_t lanes, const float* x, int64_t ldx, int64_t rows, const float* p,
                          int64_t rank, bool begin, float* q, int64_t ldq) {
  VecF sum[C][V];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[c][v] = begin ? VecF{} : load_at(part, q + c * ldq + v * kLanes, lanes);
  }
  for (int64_t i = 0; i < rows; ++i) {
    VecF a[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) a[v] = load_at(part, x + i * ldx + v * kLanes, lanes);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const VecF b = splat(p[i * rank + c]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[c][v] = fma(a[v], b, sum[c][v]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store_at(part, q + c * ldq + v * kLanes, sum[c][v], lanes);
  }
}

template <int V, typename Part>
TW_INLINE void right_panel(Part part, int64_t lanes, const float* x, int64_t ldx, int64_t rows, const float* p,
                           int64_t rank, bool begin, float* q, int64_t ldq) {
  int64_t c = 0;
  for (; c + kRightRank <= rank; c += kRightRank)
    right_tile<kRightRank, V>(part, lanes, x, ldx, rows, p + c, rank, begin, q + c * ldq, ldq);
  if (kRightRank > 4 && c + 4 <= rank) {
    right_tile<4, V>(part, lanes, x, ldx, rows, p + c, rank, begin, q + c * ldq, ldq);
    c += 4;
  }
  for (; c < rank; ++c) right_tile<1, V>(part, lanes, x, ldx, rows, p + c, rank, begin, q + c * ldq, ldq);
}

void right(const float* x, int64_t ldx, int64_t rows, int64_t width, const float* p_rows, int64_t rank, float* q,
           int64_t ldq) {
  constexpr int64_t kPanel = kRightVectors * kLanes;
  for (int64_t i = 0; i < rows; i += kRightDepth) {
    const int64_t n = rows - i < kRightDepth ? rows - i : kRightDepth;
    const float* from = x + i * ldx;
    const float* p = p_rows + i * rank;
    int64_t j = 0;
    for (; j + kPanel <= width; j += kPanel)
      right_panel<kRightVectors>(Whole{}, kLanes, from + j, ldx, n, p, rank, i == 0, q + j, ldq);
    for (; j + kLanes <= width; j += kLanes)
      right_panel<1>(Whole{}, kLanes, from + j, ldx, n, p, rank, i == 0, q + j, ldq);
    if (j < width) right_panel<1>(Ragged{}, width - j, from + j, ldx, n, p, rank, i == 0, q + j, ldq);
  }
}

// ---- p q^T

template <int R, int V, typename Part>
TW_INLINE void expand_tile(Part part, int64_t lanes, const float* p, int64_t ldp, const float* q, int64_t ldq,
                           int64_t rank, float* out, int64_t ldo, Expand how) {
  VecF sum[R][V] = {};
  for (int64_t c = 0; c < rank; ++c) {
    VecF b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) b[v] = load_at(part, q + c * ldq + v * kLanes, lanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const VecF a = splat(p[c * ldp + i]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] = fma(a, b[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* to = out + i * ldo + v * kLanes;
      VecF s = sum[i][v];
      if (how == Expand::kAdd) s = load_at(part, to, lanes) + s;
      if (how == Expand::kSubtract) s = load_at(part, to, lanes) - s;
      store_at(part, to, s, lanes);
    }
  }
}

template <int V, typename Part>
TW_INLINE void expand_panel(Part part, int64_t lanes, const float* p, int64_t ldp, const float* q, int64_t ldq,
                            int64_t rank, int64_t rows, float* out, int64_t ldo, Expand how) {
  int64_t i = 0;
  for (; i + kExpandRows <= rows; i += kExpandRows)
    expand_tile<kExpandRows, V>(part, lanes, p + i, ldp, q, ldq, rank, out + i * ldo, ldo, how);
  for (; i < rows; ++i) expand_tile<1, V>(part, lanes, p + i, ldp, q, ldq, rank, out + i * ldo, ldo, how);
}

void expand(const float* p, int64_t ldp, const float* q, int64_t ldq, int64_t rank, int64_t rows, int64_t width,
            float* out, int64_t ldo, Expand how) {
  constexpr int64_t kPanel = kExpandVectors * kLanes;
  int64_t j = 0;
  for (; j + kPanel <= width; j += kPanel)
    expand_panel<kExpandVectors>(Whole{}, kLanes, p, ldp, q + j, ldq, rank, rows, out + j, ldo, how);
  for (; j + kLanes <= width; j += kLanes)
    expand_panel<1>(Whole{}, kLanes, p, ldp, q + j, ldq, rank, rows, out + j, ldo, how);
  if (j < width) expand_panel<1>(Ragged{}, width - j, p, ldp, q + j, ldq, rank, rows, out + j, ldo, how);
}

// ---- orthonormalisation

TW_INLINE double add_8(const double* s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

template <int R, int C>
TW_INLINE void gram_tile(const float* a, const float* b, int64_t length, double* gram, int64_t ld) {
  constexpr int kHalves = 8 / kWide;
  VecD sum[R][C][kHalves] = {};
  int64_t e = 0;
  for (; e + 8 <= length; e += 8) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      VecD y[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) y[c] = load_wide(b + c * length + e + h * kWide);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        const VecD x = load_wide(a + i * length + e + h * kWide);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[i][c][h] = fma_d(x, y[c], sum[i][c][h]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      alignas(64) double s[8];
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) store_d(s + h * kWide, sum[i][c][h]);
      double total = add_8(s);
      // A product of two floats is exact in double: contracted or not, the same bits.
      for (int64_t t = e; t < length; ++t) total += (double)a[i * length + t] * (double)b[c * length + t];
      gram[i * ld + c] = total;
    }
  }
}

void gram_rows(const float* a, int64_t length, int64_t vectors, int64_t row, double* gram) {
  const int64_t last = row + 4 < vectors ? row + 4 : vectors;
  int64_t i = row;
  for (; i + kGramRows <= last; i += kGramRows) {
    int64_t j = i;
    for (; j + kGramCols <= vectors; j += kGramCols)
      gram_tile<kGramRows, kGramCols>(a + i * length, a + j * length, length, gram + i * vectors + j, vectors);
    for (; j < vectors; ++j)
      gram_tile<kGramRows, 1>(a + i * length, a + j * length, length, gram + i * vectors + j, vectors);
  }
  for (; i < last; ++i) {
    for (int64_t j = i; j < vectors; ++j)
      gram_tile<1, 1>(a + i * length, a + j * length, length, gram + i * vectors + j, vectors);
  }
}

double invert_gram(double* gram, int64_t r, double tolerance, double* t, uint8_t* dependent) {
  double* scale = t;  // [r]: row 0 of t, which is made last
  for (int64_t i = 0; i < r; ++i) {
    const double square = gram[i * r + i];
    scale[i] = square > 0.0 ? 1.0 / __builtin_sqrt(square) : 0.0;
    dependent[i] = !(square > 0.0);
  }
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = i; j < r; ++j) gram[i * r + j] = i == j ? 1.0 : gram[i * r + j] * scale[i] * scale[j];
  }
  // Row by row to the factor: gram = factor^T factor.
  for (int64_t k = 0; k < r; ++k) {
    double* row = gram + k * r;
    if (dependent[k] || !(row[k] > tolerance)) {
      dependent[k] = 1;
      for (int64_t j = k; j < r; ++j) row[j] = 0.0;
      continue;
    }
    const double inverse = 1.0 / __builtin_sqrt(row[k]);
    for (int64_t j = k; j < r; ++j) row[j] *= inverse;
    for (int64_t i = k + 1; i < r; ++i) {
      const double f = -row[i];
      double* below = gram + i * r;
      for (int64_t j = i; j < r; ++j) below[j] = __builtin_fma(f, row[j], below[j]);
    }
  }
  // t = factor^-1, from the last row up; the scales move below the diagonal of gram, which nobody reads.
  for (int64_t j = 1; j < r; ++j) gram[j * r] = scale[j];
  const double scale0 = scale[0];
  double norm = 0.0;
  for (int64_t i = r - 1; i >= 0; --i) {
    double* to = t + i * r;
    for (int64_t j = 0; j < r; ++j) to[j] = 0.0;
    if (dependent[i]) continue;
    const double* row = gram + i * r;
    for (int64_t k = i + 1; k < r; ++k) {
      if (dependent[k]) continue;
      const double f = row[k];
      const double* from = t + k * r;
      for (int64_t j = k; j < r; ++j) to[j] = __builtin_fma(f, from[j], to[j]);
    }
    const double inverse = 1.0 / row[i];
    to[i] = inverse;
    for (int64_t j = i + 1; j < r; ++j) to[j] *= -inverse;
    for (int64_t j = i; j < r; ++j) {
      if (dependent[j]) to[j] = 0.0;
    }
    for (int64_t j = i; j < r; ++j) norm = __builtin_fma(to[j], to[j], norm);
  }
  for (int64_t i = 0; i < r; ++i) {
    const double s = i == 0 ? scale0 : gram[i * r];
    for (int64_t j = i; j < r; ++j) t[i * r + j] *= s;
  }
  return norm;
}

// Two registers of elements at a time, kApply vectors of the result in registers.
template <int C>
TW_INLINE void apply_tile(const double* buffer, const double* t, int64_t vectors, int64_t j, float* a, int64_t length) {
  constexpr int kRegisters = 16 / kWide;
  for (int h = 0; h < kRegisters; h += 2) {
    VecD sum[C][2] = {};
    const int64_t last = j + C;
    for (int64_t i = 0; i < last; ++i) {
      const VecD x0 = load_d(buffer + i * 16 + h * kWide), x1 = load_d(buffer + i * 16 + (h + 1) * kWide);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const VecD f = splat_d(t[i * vectors + j + c]);
        sum[c][0] = fma_d(x0, f, sum[c][0]);
        sum[c][1] = fma_d(x1, f, sum[c][1]);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      store_narrow(a + (j + c) * length + h * kWide, sum[c][0]);
      store_narrow(a + (j + c) * length + (h + 1) * kWide, sum[c][1]);
    }
  }
}

void apply(float* a, int64_t length, int64_t vectors, const double* t, int64_t first, int64_t last, double* buffer) {
  int64_t e = first;
  for (; e + 16 <= last; e += 16) {
    for (int64_t i = 0; i < vectors; ++i) {
#pragma GCC unroll 4
      for (int h = 0; h < 16; h += kWide) store_d(buffer + i * 16 + h, load_wide(a + i * length + e + h));
    }
    int64_t j = 0;
    for (; j + kApply <= vectors; j += kApply) apply_tile<kApply>(buffer, t, vectors, j, a + e, length);
    for (; j < vectors; ++j) apply_tile<1>(buffer, t, vectors, j, a + e, length);
  }
  for (; e < last; ++e) {
    for (int64_t i = 0; i < vectors; ++i) buffer[i] = a[i * length + e];
    for (int64_t j = 0; j < vectors; ++j) {
      double s = 0.0;
      for (int64_t i = 0; i <= j; ++i) s = __builtin_fma(buffer[i], t[i * vectors + j], s);
      a[j * length + e] = (float)s;
    }
  }
}

}  // namespace

constinit const LowRankKernels low_rank_kernels = {left, right, expand, gram_rows, invert_gram, apply};

}  // namespace thinwire::TW_ISA
