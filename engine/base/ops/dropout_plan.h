// Dropout as kernels see it: plain numbers made from ops.h's Dropout on the host side of an op.
#pragma once

#include <cstdint>

namespace thinwire {

struct Dropout;
struct AttentionShape;

// Word `e % 4` of philox({key0, key1}, {e/4 low, s low, (s bits 32..47) << 16 | (e/4 bits 32..47), tag}) decides about
// element e of sample s: kept when it is >= threshold, which is the same as uniform01(word) >= p.
struct DropoutPlan {
  uint32_t key0 = 0, key1 = 0, tag = 0;
  uint32_t threshold = 0;
  float scale = 1.0f;  // 1 / (1 - p)
  const int64_t* sample_ids = nullptr;
  int64_t first = 0;       // number of flat element 0 in the whole tensor (attention: in its sample)
  int64_t per_sample = 1;  // elements of one sample: element i of the whole belongs to sample i / per_sample
  // In a sequence cut over ranks, element e of a sample's own is number e + (e < split ? front : back) of the sample.
  int64_t split = INT64_MAX, front = 0, back = 0;
  int64_t per_head = 0, per_query = 0;  // attention: from head to head, and from query to query
  bool active = false;                  // false: p == 0, nothing else is set
};

// For a tensor [rows, cols]; the whole one (dropout.rows, or this) divides evenly over dropout.batch samples. CHECKs
// 0 <= p < 1, ids, divisibility, and that the rows lie in the whole.
DropoutPlan make_dropout_plan(const Dropout& dropout, int64_t rows, int64_t cols);
// For probabilities: element of head h, query q and key k is number first + h * per_head + q * per_query + k.
DropoutPlan make_dropout_plan(const Dropout& dropout, const AttentionShape& shape);

}  // namespace thinwire
