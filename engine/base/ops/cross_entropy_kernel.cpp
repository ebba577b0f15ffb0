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
    const float weight = b.row_weight[r] * b.scale[0];
    const float inverse = 1.0f / s.sum;
    const VecF factor = splat(inverse * weight);
    for_vectors(b.valid_cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      store_at(part, row + i, vexp(load_at(part, row + i, n) - s.maximum) * factor, n);
    });
    const float probability = vexp(splat(logit - s.maximum))[0] * inverse;
    store_first(row + target, splat((probability - 1.0f) * weight), 1);
    if (b.valid_cols < b.cols) __builtin_memset(row + b.valid_cols, 0, (size_t)(b.cols - b.valid_cols) * sizeof(T));
  }
}

}  // namespace

constinit const CrossEntropyKernels cross_entropy_kernels = {{rows<float>, rows<Bf16>, rows<Fp16>}};

}  // namespace thinwire::TW_ISA
