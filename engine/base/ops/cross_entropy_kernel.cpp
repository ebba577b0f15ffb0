// Softmax cross entropy of a row in two visits: maximum and sum together (online softmax, Milakov and Gimelshein 2018),
// then the gradient.
#include "engine/base/ops/cross_entropy_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr float kLowest = -3.402823466e38f;
constexpr int64_t kChunk = 64 * kLanes;  // fits the first cache: its maximum is known before its exponentials are taken

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

template <typename T>
void rows(const CrossEntropyBlock& block, int64_t first, int64_t last) {
  const CrossEntropyBlock b = block;
  for (int64_t r = first; r < last; ++r) {
    T* row = (T*)b.logits + r * b.cols;
    if (b.row_weight[r] == 0.0f) {
      b.loss[r] = 0.0f;
      if (b.scale != nullptr) __builtin_memset(row, 0, (size_t)b.cols * sizeof(T));
      continue;
    }
    const RowSum s = row_sum(row, b.valid_cols);
    const int64_t target = b.targets[r];
    const float logit = element(row + target);
    b.loss[r] = __builtin_logf(s.sum) + (s.maximum - logit);
    if (b.scale == nullptr) continue;
    gradient_of_row(row, b.valid_cols, b.cols, s, b.row_weight[r] * b.scale[0], target, logit);
  }
}

template <typename T>
void statistics(const VocabBlock& vocab, int64_t first, int64_t last) {
  const CrossEntropyBlock b = vocab.block;
  for (int64_t r = first; r < last; ++r) {
    const T* row = (const T*)b.logits + r * b.cols;
    float* out = vocab.statistics + 3 * r;
    out[0] = out[1] = out[2] = 0.0f;
    if (b.row_weight[r] == 0.0f) continue;
    const RowSum s = row_sum(row, b.valid_cols);
    out[0] = s.maximum;
    out[1] = s.sum;
    const int64_t target = b.targets[r] - vocab.first_col;
    if (target >= 0 && target < b.valid_cols) out[2] = element(row + target);
  }
}

// Every rank does the same sums in the same order.
template <typename T>
void vocab_rows(const VocabBlock& vocab, int64_t first, int64_t last) {
  const CrossEntropyBlock b = vocab.block;
  for (int64_t r = first; r < last; ++r) {
    T* row = (T*)b.logits + r * b.cols;
    if (b.row_weight[r] == 0.0f) {
      b.loss[r] = 0.0f;
      if (b.scale != nullptr) __builtin_memset(row, 0, (size_t)b.cols * sizeof(T));
      continue;
    }
    RowSum s = {kLowest, 0.0f};
    float logit = 0.0f;
    for (int64_t k = 0; k < vocab.ranks; ++k) {
      const float* of = vocab.all + (k * vocab.n + r) * 3;
      s.maximum = of[0] > s.maximum ? of[0] : s.maximum;
      logit += of[2];
    }
    for (int64_t k = 0; k < vocab.ranks; ++k) {
      const float* of = vocab.all + (k * vocab.n + r) * 3;
      s.sum += of[1] * vexp(splat(of[0] - s.maximum))[0];
    }
    b.loss[r] = __builtin_logf(s.sum) + (s.maximum - logit);
    if (b.scale == nullptr) continue;
    const int64_t target = b.targets[r] - vocab.first_col;
    const bool here = target >= 0 && target < b.valid_cols;
    gradient_of_row(row, b.valid_cols, b.cols, s, b.row_weight[r] * b.scale[0], here ? target : -1, logit);
  }
}

}  // namespace

constinit const CrossEntropyKernels cross_entropy_kernels = {
    {rows<float>, rows<Bf16>, rows<Fp16>},
    {statistics<float>, statistics<Bf16>, statistics<Fp16>},
    {vocab_rows<float>, vocab_rows<Bf16>, vocab_rows<Fp16>},
};

}  // namespace thinwire::TW_ISA
