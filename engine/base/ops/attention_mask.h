// Who sees whom within a tile of attention, and the dropout factors of a tile; for the attention kernels only.
#pragma once

#include "engine/base/ops/attention_kernel.h"
#include "engine/base/ops/attention_pack.h"
#include "engine/base/ops/dropout_mask.h"

namespace thinwire::TW_ISA {
namespace {

constexpr int64_t kStrip = kAttentionStrip, kKeys = kAttentionKeys;

// One vector of queries against the keys [0, nk) of a tile: keys before `full` are seen by all lanes, keys from `some`
// on by none.
struct Column {
  int64_t full, some, shift;
  TW_INLINE Column(int64_t nk, int64_t shift_of_lane_0)
      : full(smaller(nk, larger(0, shift_of_lane_0 + 1))),
        some(smaller(nk, larger(0, shift_of_lane_0 + kLanes))),
        shift(shift_of_lane_0) {}
  // `value` in lanes that see key i, `other` elsewhere.
  TW_INLINE VecF select(int64_t i, VecF value, VecF other) const {
    return lane_numbers() >= splat_i((int32_t)(i - shift)) ? value : other;
  }
};

// factors[i][t] = 0 or 1 / (1 - p) for key k_first + i and query q_first + t of `head`; rows of kStrip floats. Columns
// are whole vectors; what no query sees is not written.
[[gnu::noinline]] void dropout_tile(const DropoutPlan& dropout, const AttentionShape& shape, int64_t batch,
                                    int64_t head, int64_t q_first, int64_t nq, int64_t k_first, int64_t nk,
                                    int64_t shift, float* factors) {
  const uint64_t sample = (uint64_t)dropout.sample_ids[batch];
  for (int64_t t = 0; t < nq; t += kLanes) {
    const int64_t seen = Column(nk, t + shift).some;
    if (seen == 0) continue;
    float buffers[kLanes][kKeys + kMaskSlack + kLanes];
    const float* rows[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t query = q_first + (t + lane < nq ? t + lane : nq - 1);
      const int64_t first = dropout.first + (head * shape.q_len + query) * shape.kv_len + k_first;
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
