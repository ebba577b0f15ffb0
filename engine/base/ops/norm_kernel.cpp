// LayerNorm and RMSNorm: a row stays in the first cache between its passes, so memory sees each tensor once.
#include "engine/base/ops/dropout_mask.h"
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

struct TwoSums {
  float a, b;
};

// body(part, i, n, a, b) adds what vector i of a row gives to the lanes of a and b; four pairs hide the latency of
// addition.
template <typename Body>
TW_INLINE TwoSums two_sums(int64_t count, const Body& body) {
  VecF a0{}, a1{}, a2{}, a3{}, b0{}, b1{}, b2{}, b3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    body(Whole{}, i, (int64_t)kLanes, a0, b0);
    body(Whole{}, i + kLanes, (int64_t)kLanes, a1, b1);
    body(Whole{}, i + 2 * kLanes, (int64_t)kLanes, a2, b2);
    body(Whole{}, i + 3 * kLanes, (int64_t)kLanes, a3, b3);
  }
  for (; i + kLanes <= count; i += kLanes) body(Whole{}, i, (int64_t)kLanes, a0, b0);
  if (i < count) body(Ragged{}, i, count - i, a1, b1);
  return {reduce_add((a0 + a1) + (a2 + a3)), reduce_add((b0 + b1) + (b2 + b3))};
}

template <typename T, bool kLayer>
void forward(const NormForward& op, const DropoutPlan& dropout, int64_t cols, int64_t first, int64_t last) {
  const T* weight = (const T*)op.weight.data;
  const T* bias = (const T*)op.bias.data;
  float *means = (float*)op.mean.data, *rstds = (float*)op.rstd.data;
  const float inverse = 1.0f / (float)cols;
  for (int64_t row = first; row < last; ++row) {
    const T* x = (const T*)op.x.data + row * cols;
    if (op.branch.data != nullptr) {
      add_dropped((const T*)op.x.data, (const T*)op.branch.data, (T*)op.sum.data, dropout, row * cols,
                  (row + 1) * cols);
      x = (const T*)op.sum.data + row * cols;
    }
    float mean = 0.0f, variance;
    if constexpr (kLayer) {
      mean = two_sums(cols, [&](auto part, int64_t i, int64_t n, VecF& a, VecF&)
                                TW_INLINE_LAMBDA { a += load_at(part, x + i, n); })
                 .a *
             inverse;
      // Second pass around the rounded mean; its own sum corrects the mean and the variance for that rounding.
      const TwoSums s = two_sums(cols, [&](auto part, int64_t i, int64_t n, VecF& a, VecF& b2) TW_INLINE_LAMBDA {
        const VecF d = load_at(part, x + i, n, mean) - mean;
        a += d;
        b2 = fma(d, d, b2);
      });
      const float shift = s.a * inverse;
      mean += shift;
      variance = s.b * inverse - shift * shift;
    } else {
      variance = two_sums(cols,
                          [&](auto part, int64_t i, int64_t n, VecF& a, VecF&) TW_INLINE_LAMBDA {
                            const VecF v = load_at(part, x + i, n);
                            a = fma(v, v, a);
                          })
                     .a *
                 inverse;
    }
    const float rstd = 1.0f / __builtin_sqrtf(variance + op.eps);
    if (kLayer && means != nullptr) means[row] = mean;
    if (rstds != nullptr) rstds[row] = rstd;
    T* y = (T*)op.y.data + row * cols;
    if (bias != nullptr) {
      for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
        const VecF unit = (load_at(part, x + i, n) - mean) * rstd;
        store_at(part, y + i, fma(unit, load_at(part, weight + i, n), load_at(part, bias + i, n)), n);
      });
    } else {
      for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
        const VecF unit = (load_at(part, x + i, n) - mean) * rstd;
        store_at(part, y + i, unit * load_at(part, weight + i, n), n);
      });
    }
  }
}

// Rows [row, row + kRows): the gradient of the input, and kRows' worth of the parameter gradients in one visit of each
// column.
template <typename T, bool kLayer, bool kResidual, int kRows>
TW_INLINE void backward_rows(const NormBackward& op, int64_t cols, int64_t row, float* dweight, float* dbias) {
  const int64_t at = row * cols;
  const T* dy = (const T*)op.dy.data + at;
  const T* x = (const T*)op.x.data + at;
  const T* residual = kResidual ? (const T*)op.residual.data + at : nullptr;
  const T* weight = (const T*)op.weight.data;
  T* dx = (T*)op.dx.data + at;
  const float inverse = 1.0f / (float)cols;
  float mean[kRows], rstd[kRows], offset[kRows], slope[kRows];
  for (int r = 0; r < kRows; ++r) {
    mean[r] = kLayer ? ((const float*)op.mean.data)[row + r] : 0.0f;
    rstd[r] = ((const float*)op.rstd.data)[row + r];
    const TwoSums s = two_sums(cols, [&](auto part, int64_t i, int64_t n, VecF& a, VecF& b2) TW_INLINE_LAMBDA {
      const VecF g = load_at(part, dy + r * cols + i, n) * load_at(part, weight + i, n);
      if constexpr (kLayer) a += g;
      b2 = fma(g, load_at(part, x + r * cols + i, n, mean[r]) - mean[r], b2);
    });
    offset[r] = kLayer ? s.a * inverse : 0.0f;
    slope[r] = s.b * rstd[r] * inverse;
  }
  for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    const VecF w = load_at(part, weight + i, n);
    VecF dw{}, db{};
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const VecF g = load_at(part, dy + r * cols + i, n);
      const VecF unit = (load_at(part, x + r * cols + i, n) - mean[r]) * rstd[r];
      dw = fma(g, unit, dw);
      db += g;
      VecF inner = fma(-unit, splat(slope[r]), g * w);
      if constexpr (kLayer) inner -= offset[r];
      VecF result = inner * rstd[r];
      if constexpr (kResidual) result += load_at(part, residual + r * cols + i, n);
      store_at(part, dx + r * cols + i, result, n);
    }
    store_at(part, dweight + i, load_at(part, dweight + i, n) + dw, n);
    if (dbias != nullptr) store_at(part, dbias + i, load_at(part, dbias + i, n) + db, n);
  });
}

template <typename T, bool kLayer, bool kResidual>
void backward_block(const NormBackward& op, int64_t cols, int64_t first, int64_t last, float* dweight, float* dbias) {
  for (int64_t i = 0; i < cols; ++i) dweight[i] = 0.0f;
  for (int64_t i = 0; dbias != nullptr && i < cols; ++i) dbias[i] = 0.0f;
  int64_t row = first;
  for (; row + 4 <= last; row += 4) backward_rows<T, kLayer, kResidual, 4>(op, cols, row, dweight, dbias);
  for (; row < last; ++row) backward_rows<T, kLayer, kResidual, 1>(op, cols, row, dweight, dbias);
}

template <typename T, bool kLayer>
void backward(const NormBackward& op, int64_t cols, int64_t first, int64_t last, float* dweight, float* dbias) {
  if (op.residual.data != nullptr)
    backward_block<T, kLayer, true>(op, cols, first, last, dweight, dbias);
  else
    backward_block<T, kLayer, false>(op, cols, first, last, dweight, dbias);
}

}  // namespace

constinit const NormKernels norm_kernels = {
    {{forward<float, true>, forward<Bf16, true>, forward<Fp16, true>},
     {forward<float, false>, forward<Bf16, false>, forward<Fp16, false>}},
    {{backward<float, true>, backward<Bf16, true>, backward<Fp16, true>},
     {backward<float, false>, backward<Bf16, false>, backward<Fp16, false>}},
};

}  // namespace thinwire::TW_ISA
