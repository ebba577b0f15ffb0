// Fused attention of a library against the float64 oracle: one list of cases and one check, for the real library on a
// GPU and for the stand-in that shows what the check finds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/attention_oracle.h"

namespace thinwire::test {

// Runs forward and backward of the tensors through a library; false where it refuses.
using FusedRun = std::function<bool(AttentionTensors&)>;

// One head per group and several, head sizes 64 and 128, lengths around the tiles of 64 and 128 and ragged ones.
inline std::vector<AttentionCase> fused_attention_cases(const std::vector<int64_t>& lengths) {
  std::vector<AttentionCase> cases;
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (int64_t members : {1, 4, 3}) {
      for (int64_t d : {64, 128}) {
        for (int64_t length : lengths) {
          AttentionCase c;
          c.dtype = dtype, c.batch = 2, c.q_len = c.kv_len = length, c.groups = 2, c.heads_per_group = members;
          c.head_dim = d, c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
          c.apart = members == 4;  // as the model has it; in between, heads are cut otherwise
          // lse of the second sample begins on 16 bytes, or the library is not for it (attention_calls.h).
          if (members == 3 && length % 2 != 0) c.groups = 4;
          cases.push_back(c);
          c.dropout = 0.1f;
          if (length % 8 == 0) cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

// How many of out, lse, dq (with dk and dv in it) lie within the bounds; 3 is right. Says what does not where `report`.
inline int fused_within_bounds(const AttentionCase& c, uint32_t seed, const FusedRun& run, bool report) {
  std::mt19937 rng(seed);
  AttentionTensors x(c, rng);
  for (Tensor* t : {&x.out, &x.lse}) {
    for (int64_t i = 0; i < t->count(); ++i) t->set(i, std::nan(""));  // every element has to be written
  }
  for (int64_t i = 0; i < x.dq.count(); ++i) x.dq.set(i, std::nan(""));
  if (!run(x)) {
    if (report) ADD_FAILURE() << "not taken: " << c.name();
    return 0;
  }
  const AttentionOracle want = attention_oracle(x, true, {.library = true});
  int within = 0;
  const auto check = [&](const Tensor& got, const std::vector<double>& value, const std::vector<double>& bound,
                         const char* what) {
    for (size_t i = 0; i < value.size(); ++i) {
      const double difference = std::abs(got.at(static_cast<int64_t>(i)) - value[i]);
      if (difference <= bound[i]) continue;  // NaN is never within
      if (report)
        ADD_FAILURE() << what << " of " << c.name() << " at " << i << ": " << got.at(static_cast<int64_t>(i))
                      << " instead of " << value[i] << " +- " << bound[i];
      return;
    }
    ++within;
  };
  check(x.out, want.out, want.out_bound, "out");
  check(x.lse, want.lse, want.lse_bound, "lse");
  check(x.dq, want.dq, want.dq_bound, "gradients");
  return within;
}

}  // namespace thinwire::test
