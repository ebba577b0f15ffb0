// The order in which several data sets take turns: the one that is furthest behind its weight goes next.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/narrow_vector.h"

namespace thinwire {

// Samples that a set of normalised weight w contributes to `size`, rounded up; and what is built of it (a part
// `surplus` more, because the greedy order can take a few more than its share).
int64_t blend_share(int64_t size, double w);
int64_t blend_request(int64_t size, double w, double surplus);

// Megatron's build_blending_indices: position i takes the set with the largest w * max(i, 1) - taken, the first one on
// ties, in plain doubles (a fused multiply-add gives another order; the build forbids it for this folder).
class Blend {
 public:
  Blend() = default;
  // Normalised weights, all positive (by Megatron's order normalised twice: sample_stream.cpp); at most 65535 sets. 6
  // bytes per sample.
  Blend(std::span<const double> weights, int64_t size);
  int64_t size() const { return static_cast<int64_t>(dataset_.size()); }
  int64_t dataset(int64_t i) const { return dataset_[static_cast<size_t>(i)]; }
  int64_t sample(int64_t i) const { return sample_[i]; }  // sample of that set
  int64_t taken(int64_t dataset) const { return taken_[static_cast<size_t>(dataset)]; }

 private:
  std::vector<uint16_t> dataset_;
  NarrowVector sample_;
  std::vector<int64_t> taken_;
};

}  // namespace thinwire
