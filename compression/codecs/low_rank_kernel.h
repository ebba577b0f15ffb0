// The inner loops of low rank: three skinny products and the pieces of an orthonormalisation.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

enum class Expand : int { kStore, kAdd, kSubtract };

// Factors are stored transposed: vector c of a factor is contiguous, `ld` elements behind vector c - 1. Every sum has
// one order that depends on its length alone (16 or 8 interleaved partial sums added as a tree, or one chain), so
// tiles, threads and instruction sets give the same bits.
struct LowRankKernels {
  // p[c * ldp + i] = sum_k x[i * cols + k] * q[c * cols + k] for rows [0, rows) and c in [0, rank).
  void (*left)(const float* x, int64_t rows, int64_t cols, const float* q, int64_t rank, float* p, int64_t ldp);
  // q[c * ldq + j] = sum_i x[i * ldx + j] * p_rows[i * rank + c] for columns [0, width): a chain in the order of rows.
  void (*right)(const float* x, int64_t ldx, int64_t rows, int64_t width, const float* p_rows, int64_t rank, float* q,
                int64_t ldq);
  // v = sum_c p[c * ldp + i] * q[c * ldq + j] in the order of c, then out[i * ldo + j] = v, += v, or = out - v.
  void (*expand)(const float* p, int64_t ldp, const float* q, int64_t ldq, int64_t rank, int64_t rows, int64_t width,
                 float* out, int64_t ldo, Expand how);

  // gram[i * vectors + j] = <a_i, a_j> in double, for i in [row, row + 4), j >= i (clipped to vectors).
  void (*gram_rows)(const float* a, int64_t length, int64_t vectors, int64_t row, double* gram);
  // gram [r, r] (upper triangle; destroyed) of vectors a_j -> t [r, r] upper triangular: a t has orthonormal columns.
  // Vectors of which less than sqrt(tolerance) of their length is left beside those before them are marked in
  // dependent[j] = 1; their row and column of t are zero. Returns the square of the Frobenius norm of the inverse of
  // the factor of the Gram matrix scaled to a unit diagonal (over independent vectors), which bounds the loss of
  // orthogonality by itself times the error of the Gram matrix.
  double (*invert_gram)(double* gram, int64_t r, double tolerance, double* t, uint8_t* dependent);
  // a_j[e] = sum_{i <= j} a_i[e] * t[i * vectors + j] in double, for elements e of [first, last), in place.
  // buffer: [vectors * 16] doubles.
  void (*apply)(float* a, int64_t length, int64_t vectors, const double* t, int64_t first, int64_t last,
                double* buffer);
};
TW_DECLARE_KERNELS(LowRankKernels, low_rank_kernels)

}  // namespace thinwire
