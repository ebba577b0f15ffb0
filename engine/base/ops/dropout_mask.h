// Dropout masks for kernels: the factors (0 or 1/(1-p)) of a run of elements, several Philox blocks at a time.
#pragma once

#include <cstdint>

#include "engine/base/ops/dropout_plan.h"
#include "engine/base/ops/philox_simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int kMaskStep = 4 * kPhiloxBlocks;   // elements made at a time: two vectors
constexpr int64_t kMaskSlack = kMaskStep + 4;  // what keep_factors needs beyond the elements asked for

// Factors of elements [4 * block, 4 * block + kMaskStep) of sample `sample`: `low` the first kLanes of them, `high` the
// rest.
TW_INLINE void keep_factors_of_blocks(const DropoutPlan& plan, uint64_t sample, uint64_t block, VecF& low, VecF& high) {
  const VecW blocks = block_numbers(block);
  VecU first, second;
  philox_words(plan.key0, plan.key1, blocks, VecW{} + (sample & 0xffffffffu),
               (blocks >> 32 & 0xffffu) | ((sample >> 32 & 0xffffu) << 16), VecW{} + plan.tag, first, second);
  low = first >= plan.threshold ? splat(plan.scale) : VecF{};
  high = second >= plan.threshold ? splat(plan.scale) : VecF{};
}

// Factors of elements [first, first + count) of sample `sample` (an id, not an index): any start, any count. `buffer`
// holds count + kMaskSlack floats; the result points into it at the factor of `first`.
TW_INLINE const float* keep_factors_of_sample(const DropoutPlan& plan, uint64_t sample, int64_t first, int64_t count,
                                              float* buffer) {
  const int64_t shift = first & 3;
  for (int64_t i = 0; i < count + shift; i += kMaskStep) {
    VecF low, high;
    keep_factors_of_blocks(plan, sample, (uint64_t)((first - shift + i) >> 2), low, high);
    store(buffer + i, low);
    store(buffer + i + kLanes, high);
  }
  return buffer + shift;
}

// The same for flat elements [first, first + count) of the tensor at hand, which may cross from sample to sample, and
// from the front run of a cut sequence to its back run.
TW_INLINE const float* keep_factors(const DropoutPlan& plan, int64_t first, int64_t count, float* buffer) {
  int64_t sample = (plan.first + first) / plan.per_sample;
  int64_t element = plan.first + first - sample * plan.per_sample;
  const auto end_of_run = [&] {
    return element < plan.split && plan.split < plan.per_sample ? plan.split : plan.per_sample;
  };
  const auto number = [&] { return element + (element < plan.split ? plan.front : plan.back); };
  if (element + count <= end_of_run()) {
    return keep_factors_of_sample(plan, (uint64_t)plan.sample_ids[sample], number(), count, buffer);
  }
  for (int64_t done = 0; done < count;) {
    int64_t n = end_of_run() - element;
    if (n > count - done) n = count - done;
    if (n > kMaskStep) n = kMaskStep;
    float piece[kMaskStep + kMaskSlack];
    const float* factors = keep_factors_of_sample(plan, (uint64_t)plan.sample_ids[sample], number(), n, piece);
    for (int64_t i = 0; i < n; ++i) buffer[done + i] = factors[i];
    done += n;
    element += n;
    if (element == plan.per_sample) {
      element = 0;
      ++sample;
    }
  }
  return buffer;
}

// Calls body(start, count, factors) for runs of [first, last); factors[i] belongs to element start + i.
template <typename Body>
TW_INLINE void for_dropout_runs(const DropoutPlan& plan, int64_t first, int64_t last, const Body& body) {
  constexpr int64_t kChunk = 512;
  alignas(64) float buffer[kChunk + kMaskSlack];
  for (int64_t c = first; c < last; c += kChunk) {
    const int64_t count = last - c < kChunk ? last - c : kChunk;
    body(c, count, keep_factors(plan, c, count, buffer));
  }
}

// y = x + dropout(branch), rounded to T, for elements [first, last).
template <typename T>
TW_INLINE void add_dropped(const T* x, const T* branch, T* y, const DropoutPlan& plan, int64_t first, int64_t last) {
  if (!plan.active) {
    for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      store_at(part, y + first + i, load_at(part, x + first + i, n) + load_at(part, branch + first + i, n), n);
    });
    return;
  }
  for_dropout_runs(plan, first, last, [&](int64_t start, int64_t count, const float* keep) TW_INLINE_LAMBDA {
    for_vectors(count, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      const VecF dropped = load_at(part, branch + start + i, n) * load_at(part, keep + i, n);
      store_at(part, y + start + i, load_at(part, x + start + i, n) + dropped, n);
    });
  });
}

}  // namespace
}  // namespace thinwire::TW_ISA
