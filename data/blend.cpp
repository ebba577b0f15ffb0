// Greedy blending of data sets.
#include "data/blend.h"

#include <algorithm>
#include <cmath>

#include "engine/base/core/check.h"

namespace thinwire {

int64_t blend_share(int64_t size, double w) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(size) * w));
}

int64_t blend_request(int64_t size, double w, double surplus) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(blend_share(size, w)) * (1.0 + surplus)));
}

Blend::Blend(std::span<const double> weights, int64_t size)
    : dataset_(static_cast<size_t>(size)), sample_(size, size), taken_(weights.size(), 0) {
  TW_CHECK(!weights.empty() && weights.size() < 65536, weights.size(), " sets");
  for (int64_t i = 0; i < size; ++i) {
    const double position = static_cast<double>(std::max<int64_t>(i, 1));
    const auto behind = [&](size_t k) { return weights[k] * position - static_cast<double>(taken_[k]); };
    size_t next = 0;
    double most = behind(next);
    for (size_t k = 1; k < weights.size(); ++k)
      if (const double by = behind(k); by > most) next = k, most = by;
    dataset_[static_cast<size_t>(i)] = static_cast<uint16_t>(next);
    sample_.set(i, taken_[next]++);
  }
}

}  // namespace thinwire
