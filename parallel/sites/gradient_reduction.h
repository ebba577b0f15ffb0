// Sites dp.gradient and embedding: a unit's gradients are summed over the ranks that hold the unit.
//
// dp.gradient: over the data-parallel ranks. embedding: the tied embedding, over the data-parallel ranks of the first
// and the last stage. Fused (default): one reduction over the 2 D ranks, (2D - 1) / D of its bytes for an all-reduce.
// Two-step: first over the D ranks of each stage, then between the two stages, (3D - 2) / D. Same sums.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "parallel/channel/channel.h"
#include "parallel/sites/unit_pieces.h"

namespace thinwire {

// In this order: shard (each micro-batch) -> refine (at the last) -> replicas (at the last) [-> pair: two-step
// embedding].
struct GradientChannels {
  Channel shard, refine, replicas, pair;
};

// `full` [unit] fp32 is this rank's sum. `shard` receives (accumulate) the range of the gradients' level; where that
// level is one rank wide, it is the same memory as in `full`.
struct GradientBuffers {
  View full, shard;
};

class GradientReduction {
 public:
  GradientReduction() = default;  // one rank
  explicit GradientReduction(GradientChannels channels) : channels_(std::move(channels)) {}
  // Starts the whole way of one unit's gradient as one operation: reduce-scatter, refine, replicas. With `last`, the
  // optimizer's range inside `shard` ends up with the sum over all. Called once per unit and step, or, where gradients
  // are sharded, once per micro-batch.
  Ticket reduce(const UnitShard& unit, std::span<const UnitPiece> pieces, const GradientBuffers& buffers, bool last,
                Stream& stream);
  // Whether those messages travel between devices: all of them do, or none. Where any is compressed by what a device
  // cannot, none does.
  bool on_device(std::span<const UnitPiece> pieces, Stream& stream) const;
  // On devices: what reduce() does because it is the last one, behind one that was not.
  Ticket finish(const UnitShard& unit, std::span<const UnitPiece> pieces, const GradientBuffers& buffers,
                Stream& stream);
  // Makes the states of those messages, so that a checkpoint can fill them before the first step.
  void prepare(std::span<const UnitPiece> pieces);

 private:
  bool stay_on_device(std::span<const UnitPiece> pieces) const;

  GradientChannels channels_;
};

// Members that hold the same optimizer range, and behind them the two stages of a two-step embedding (else empty).
struct ReplicaGroups {
  std::vector<int> replicas, pair;
};
ReplicaGroups replica_groups(const Placement& placement, bool tied, const UnitShard& shard);

}  // namespace thinwire
