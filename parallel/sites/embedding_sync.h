// Site embedding: the tied embedding's gradient is summed over its holders: first and last stage, data-parallel ranks.
//
// Fused (default): one reduction over the 2 D ranks, (2D - 1) / D of its bytes for an all-reduce. Two-step: first over
// the D ranks of each stage, then between the two stages, (3D - 2) / D. Same sums.
#pragma once

#include "parallel/sites/reduction_groups.h"

namespace thinwire {

class EmbeddingSync {
 public:
  EmbeddingSync() = default;  // one rank
  explicit EmbeddingSync(GradientChannels channels) : channels_(std::move(channels)) {}
  Ticket reduce(const UnitShard& unit, std::span<const UnitPiece> pieces, const GradientBuffers& buffers, bool last,
                Stream& stream) {
    return reduce_unit(channels_, unit, pieces, buffers, last, stream);
  }
  void prepare(std::span<const UnitPiece> pieces) { prepare_unit(channels_, pieces); }

 private:
  GradientChannels channels_;
};

}  // namespace thinwire
