// Chooses the next token from logits: greedy, or by temperature and top-k with counter-based random numbers.
#pragma once

#include <cstdint>
#include <span>

namespace thinwire {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all tokens
  uint64_t seed = 0;
};

// logits of the ids that exist. The draw depends on (seed, index) alone. NaN logits throw Error(kBadData).
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t index);

}  // namespace thinwire
