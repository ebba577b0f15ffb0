// Who sees whom within a tile of attention, and the dropout factors of a tile; for the attention kernels only.
#pragma once

#include "engine/base/ops/attention_kernel.h"
#include "engine/base/ops/attention_pack.h"
#include "engine/base/ops/dropout_mask.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int64_t kStrip = kAttentionStrip, kKeys = kAttentionKeys;

// One vector of queries against the keys [0, nk) of a tile: keys before `full` are seen by all lanes, keys from `some`
// on by none. first: per lane the first key of the tile that it sees, ascending; nullptr: all see key 0.
struct Column {
  int64_t full, some, shift;
  VecI first = {};
  TW_INLINE Column(int64_t nk, int64_t shift_of_lane_0)
      : full(smaller(nk, larger(0, shift_of_lane_0 + 1))),
        some(smaller(nk, larger(0, shift_of_lane_0 + kLanes))),
        shift(shift_of_lane_0) {}
  TW_INLINE Column(int64_t nk, int64_t shift_of_lane_0, const int32_t* first_of_lanes) : Column(nk, shift_of_lane_0) {
    if (first_of_lanes == nullptr || first_of_lanes[kLanes - 1] <= 0) return;
    __builtin_memcpy(&first, first_of_lanes, sizeof first);
    full = 0;
    if (first_of_lanes[0] >= nk) some = 0;
  }
  // `value` in lanes that see key i, `other` elsewhere.
  TW_INLINE VecF select(int64_t i, VecF value, VecF other) const {
    return (lane_numbers() >= splat_i((int32_t)(i - shift))) & (first <= splat_i((int32_t)i)) ? value : other;
  }
};

// Query t sees no key behind t + this; as AttentionShape::behind.
TW_INLINE int64_t behind_of(const AttentionShape& s) {
  return s.length > 0 ? s.first_query - s.first_key : s.kv_len - s.q_len;
}

// The first keys that the queries of a sample see, by documents and by the sliding window.
class FirstKeys {
 public:
  template <class Op>
  TW_INLINE FirstKeys(const Op& op, int64_t batch)
      : all_(op.first_keys.data == nullptr ? nullptr : (const int32_t*)op.first_keys.data + batch * op.shape.q_len),
        first_key_(op.shape.first_key),
        ahead_(op.window < 0 ? INT64_MIN / 2 : behind_of(op.shape) - op.window),
        any_(all_ != nullptr || op.window >= 0) {}
  // Where tiles of keys begin that query q, or a later one, sees.
  TW_INLINE int64_t tile_of(int64_t q) const { return first(q) / kKeys * kKeys; }
  // Whether query q and all later ones see nothing before key k.
  TW_INLINE bool hides(int64_t q, int64_t k) const { return any_ && first(q) >= k; }
  // Relative to key k_first, for a strip of queries; nullptr where all see all.
  TW_INLINE const int32_t* strip(int64_t q_first, int64_t nq, int64_t k_first) {
    if (!any_) return nullptr;
    for (int64_t t = 0; t < kStrip; ++t) strip_[t] = (int32_t)(first(q_first + (t < nq ? t : nq - 1)) - k_first);
    return strip_;
  }

 private:
  TW_INLINE int64_t first(int64_t q) const {
    return larger(0, larger(all_ == nullptr ? 0 : all_[q] - first_key_, q + ahead_));
  }
  const int32_t* all_;
  int64_t first_key_, ahead_;  // q + ahead_ is the first key of the window, or below 0
  bool any_;
  int32_t strip_[kStrip];
};

// factors[i][t] = 0 or 1 / (1 - p) for key k_first + i and query q_first + t of `head`; rows of kStrip floats. Columns
// are whole vectors; what no query sees is not written.
[[gnu::noinline]] void dropout_tile(const DropoutPlan& dropout, int64_t batch, int64_t head, int64_t q_first,
                                    int64_t nq, int64_t k_first, int64_t nk, int64_t shift, float* factors) {
  const uint64_t sample = (uint64_t)dropout.sample_ids[batch];
  for (int64_t t = 0; t < nq; t += kLanes) {
    const int64_t seen = Column(nk, t + shift).some;
    if (seen == 0) continue;
    float buffers[kLanes][kKeys + kMaskSlack + kLanes];
    const float* rows[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t query = q_first + (t + lane < nq ? t + lane : nq - 1);
      const int64_t first = dropout.first + head * dropout.per_head + query * dropout.per_query + k_first;
      rows[lane] = keep_factors_of_sample(dropout, sample, first, seen, buffers[lane]);
    }
    for (int64_t i = 0; i < seen; i += kLanes) {
      VecF square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) square[lane] = load(rows[lane] + i);
      transpose_vectors(square);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) store(factors + (i + r) * kStrip + t, square[r]);
    }
  }
}

}  // namespace
}  // namespace thinwire::TW_ISA
