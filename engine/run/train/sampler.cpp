// Softmax sampling in double over the candidates, ties to the smaller id.
#include "engine/run/train/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/philox.h"

namespace thinwire {

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t index) {
  for (float l : logits) {
    if (std::isnan(l)) throw_bad_data("the model's logits are not numbers: its weights are damaged or it diverged");
  }
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto better = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (options.temperature == 0.0) return *std::min_element(ids.begin(), ids.end(), better);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(ids.size())) {
    std::nth_element(ids.begin(), ids.begin() + options.top_k, ids.end(), better);
    ids.resize(static_cast<size_t>(options.top_k));
    std::sort(ids.begin(), ids.end());
  }
  double largest = -INFINITY;
  for (int32_t id : ids) largest = std::max(largest, static_cast<double>(logits[id]));
  std::vector<double> mass(ids.size());
  double total = 0.0;
  for (size_t i = 0; i < ids.size(); ++i) total += mass[i] = std::exp((logits[ids[i]] - largest) / options.temperature);
  const PhiloxBlock bits =
      philox(seed_key(options.seed), {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0,
                                      static_cast<uint32_t>(RandomPurpose::kSampling)});
  double left = (static_cast<double>(bits[0]) + static_cast<double>(bits[1]) * 0x1p-32) * 0x1p-32 * total;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (left < mass[i]) return ids[i];
    left -= mass[i];
  }
  return ids.back();
}

}  // namespace thinwire
