// Softmax cross entropy of a row in two visits: maximum and sum together (online softmax, Milakov and Gimelshein 2018),
// then the gradient.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr float kLowest = -3.402823466e38f;
constexpr int64_t kChunk = 64 * kLanes;  // fits L1, since it is read twice: for its maximum, then for exponentials

struct RowSum {
  float maximum;
  float sum;  // of e^(v - maximum)
};

// Every lane keeps a maximum and a sum of its own. The maximum skips NaN and the sum does not, so NaN reaches the loss.
template <typename T>
TW_INLINE RowSum row_sum(const T* row, int64_t count) {
  VecF maximum = splat(kLowest), sum{};
  for (int64_t c = 0; c < count; c += kChunk) {
    const int64_t size = count - c < kChunk ? count - c : kChunk;
    const T* p = row + c;
    VecF m0 = maximum, m1 = maximum;
    int64_t i = 0;
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      m0 = vmax(load(p + i), m0);
      m1 = vmax(load(p + i + kLanes), m1);
    }
    for (; i + kLanes <= size; i += kLanes) m0 = vmax(load(p + i), m0);
    if (i < size) m1 = vmax(load_first(p + i, size - i, kLowest), m1);
    m0 = vmax(m0, m1);
    VecF s0 = sum * vexp(maximum - m0), s1{}, s2{}, s3{};
    maximum = m0;
    for (i = 0; i + 4 * kLanes <= size; i += 4 * kLanes) {
      s0 += vexp(load(p + i) - maximum);
      s1 += vexp(load(p + i + kLanes) - maximum);
      s2 += vexp(load(p + i + 2 * kLanes) - maximum);
      s3 += vexp(load(p + i + 3 * kLanes) - maximum);
    }
    for (; i + kLanes <= size; i += kLanes) s0 += vexp(load(p + i) - maximum);
    if (i < size) s1 += vexp(load_first(p + i, size - i, -__builtin_inff()) - maximum);
    sum = (s0 + s1) + (s2 + s3);
  }
  const float top = reduce_max(maximum);
  return {top, reduce_add(sum * vexp(maximum - splat(top)))};
}

template <typename T>
TW_INLINE float element(const T* p) {
  return load_first(p, 1)[0];
}

// Overwrites a row by (softmax - onehot) * weight; target < 0: it is not in this row.
template <typename T>
TW_INLINE void gradient_of_row(T* row, int64_t valid_cols, int64_t cols, RowSum s, float weight, int64_t target,
                               float logit) {
  const float inverse = 1.0f / s.sum;
  const VecF factor = splat(inverse * weight);
  for_vectors(valid_cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    store_at(part, row + i, vexp(load_at(part, row + i, n) - s.maximum) * factor, n);
  });
  if (target >= 0) {
    const float probability = vexp(splat(logit - s.maximum))[0] * inverse;
    store_first(row + target, splat((probability - 1.0f) * weight), 1);
  }
  if (valid_cols < cols) __builtin_memset(row + valid_cols, 0, (size_t)(cols - valid_cols) * sizeof(T));
}

// A row that counts for nothing: no loss, and no gradient where one is asked for.
template <typename T>
TW_INLINE void clear_row(T* row, int64_t cols, float* loss, const float* scale) {
  *loss = 0.0f;
  if (scale != nullptr) __builtin_memset(row, 0, (size_t)cols * sizeof(T));
}

template <typename T>
void rows(const CrossEntropy& op, int64_t cols, int64_t first, int64_t last) {
  const int32_t* targets = (const int32_t*)op.targets.data;
  const float *weights = (const float*)op.row_weight.data, *scale = (const float*)op.dlogits_scale.data;
  float* loss = (float*)op.loss.data;
  for (int64_t r = first; r < last; ++r) {
    T* row = (T*)op.logits.data + r * cols;
    if (weights[r] == 0.0f) {
      clear_row(row, cols, loss + r, scale);
      continue;
    }
    const RowSum s = row_sum(row, op.valid_cols);
    const int64_t target = targets[r];
    const float logit = element(row + target);
    loss[r] = __builtin_logf(s.sum) + (s.maximum - logit);
    if (scale == nullptr) continue;
    gradient_of_row(row, op.valid_cols, cols, s, weights[r] * scale[0], target, logit);
  }
}

template <typename T>
void statistics(const VocabStatistics& op, int64_t cols, int64_t valid, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) {
    const T* row = (const T*)op.logits.data + r * cols;
    float* out = (float*)op.statistics.data + 3 * r;
    out[0] = out[1] = out[2] = 0.0f;
    if (((const float*)op.row_weight.data)[r] == 0.0f) continue;
    const RowSum s = row_sum(row, valid);
    out[0] = s.maximum;
    out[1] = s.sum;
    const int64_t target = ((const int32_t*)op.targets.data)[r] - op.first_col;
    if (target >= 0 && target < valid) out[2] = element(row + target);
  }
}

// All ranks add the statistics up in one order, so that they agree in every bit.
template <typename T>
void vocab_rows(const VocabLoss& op, int64_t cols, int64_t valid, int64_t n, int64_t ranks, int64_t first,
                int64_t last) {
  const float *weights = (const float*)op.row_weight.data, *scale = (const float*)op.dlogits_scale.data;
  float* loss = (float*)op.loss.data;
  for (int64_t r = first; r < last; ++r) {
    T* row = (T*)op.logits.data + r * cols;
    if (weights[r] == 0.0f) {
      clear_row(row, cols, loss + r, scale);
      continue;
    }
    RowSum s = {kLowest, 0.0f};
    float logit = 0.0f;
    for (int64_t k = 0; k < ranks; ++k) {
      const float* of = (const float*)op.all.data + (k * n + r) * 3;
      s.maximum = of[0] > s.maximum ? of[0] : s.maximum;
      logit += of[2];
    }
    for (int64_t k = 0; k < ranks; ++k) {
      const float* of = (const float*)op.all.data + (k * n + r) * 3;
      s.sum += of[1] * vexp(splat(of[0] - s.maximum))[0];
    }
    loss[r] = __builtin_logf(s.sum) + (s.maximum - logit);
    if (scale == nullptr) continue;
    const int64_t target = ((const int32_t*)op.targets.data)[r] - op.first_col;
    gradient_of_row(row, valid, cols, s, weights[r] * scale[0], target >= 0 && target < valid ? target : -1, logit);
  }
}

}  // namespace

constinit const CrossEntropyKernels cross_entropy_kernels = {
    {rows<float>, rows<Bf16>, rows<Fp16>},
    {statistics<float>, statistics<Bf16>, statistics<Fp16>},
    {vocab_rows<float>, vocab_rows<Bf16>, vocab_rows<Fp16>},
};

}  // namespace thinwire::TW_ISA
