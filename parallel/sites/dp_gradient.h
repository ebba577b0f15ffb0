// Site dp.gradient: a unit's finished gradients are summed over the data-parallel ranks (all-reduce or reduce-scatter).
#pragma once

#include "parallel/sites/reduction_groups.h"

namespace thinwire {

class DpGradient {
 public:
  DpGradient() = default;  // one rank
  explicit DpGradient(GradientChannels channels) : channels_(std::move(channels)) {}
  // See reduce_unit. Called once per unit and update, or, where gradients are sharded, once per micro-batch.
  Ticket reduce(const UnitShard& unit, std::span<const UnitPiece> pieces, const GradientBuffers& buffers, bool last,
                Stream& stream) {
    return reduce_unit(channels_, unit, pieces, buffers, last, stream);
  }
  void prepare(std::span<const UnitPiece> pieces) { prepare_unit(channels_, pieces); }

 private:
  GradientChannels channels_;
};

}  // namespace thinwire
