// The channels over which one kind of unit is reduced and gathered; sites dp.gradient, zero.parameter and embedding
// share the shape.
#pragma once

#include <span>
#include <vector>

#include "parallel/comm/mesh.h"
#include "parallel/rules/message_rules.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/placement.h"

namespace thinwire {

// Gradients: shard (each micro-batch) -> refine (at the last) -> replicas (at the last) [-> pair: two-step embedding].
struct GradientChannels {
  Channel shard, refine, replicas, pair;
};
// Weights: update (after the optimizer) and gather / keep (before use).
struct ParameterChannels {
  Channel update, gather, keep;
};

// Built from any UnitShard of the kind: groups do not depend on the unit's size. `tied`: the embedding shared by first
// and last stage; its members then count both stages.
GradientChannels make_gradient_channels(Mesh& mesh, const Placement& placement, bool tied);
ParameterChannels make_parameter_channels(Mesh& mesh, const Placement& placement, bool tied);

// How a piece of a unit falls on the groups: bounds relative to the piece (shard), to its part inside `gradients`
// (refine), and the part of it that is this rank's.
struct PieceRanges {
  std::vector<int64_t> shard_bounds, refine_bounds;
  Range refined, mine;  // relative to the unit's start
};

// A stretch of a unit that travels as one message: what a rule codes and what it leaves as it is are different pieces.
struct UnitPiece {
  Range range;  // elements, relative to the unit's start
  uint32_t slot = 0;
  bool coded = true;
  // Of the piece as it is summed over the gradients' level, over the optimizer's level (the part of it inside this
  // rank's `gradients`), and between replicas (inside `optimizer`): matrices that lie in it whole, positions from
  // there.
  std::vector<MatrixShape> shard_matrices, refine_matrices, mine_matrices;
  PieceRanges ranges;
  bool awaited = false;  // see MessageKey
  MessageKey key(std::span<const MatrixShape> matrices) const { return {slot, coded, matrices, nullptr, awaited}; }
};
// A piece without matrices.
UnitPiece make_piece(Range range, uint32_t slot, bool coded, const UnitShard& shard);
// select == nullptr: one piece, coded if the channel codes. `unit_number` numbers the slots. leave_whole: see
// coded_ranges.
std::vector<UnitPiece> cut_unit(const SelectSpec* select, int unit_number, const UnitShard& shard, const Unit& unit,
                                const ParamList& params, int layers, bool leave_whole = false);

// Starts the whole way of one unit's gradient as one operation: reduce-scatter, refine, replicas. `full` [unit] fp32 is
// this rank's sum; `shard` receives (accumulate) the range of the gradients' level - the same memory as in `full` where
// that level is one rank wide -; with `last`, the optimizer's range inside `shard` ends up with the sum over all.
struct GradientBuffers {
  View full, shard;
};
Ticket reduce_unit(GradientChannels& channels, const UnitShard& unit, std::span<const UnitPiece> pieces,
                   const GradientBuffers& buffers, bool last, Stream& stream);
// Makes the states of those messages, so that a checkpoint can fill them before the first update.
void prepare_unit(GradientChannels& channels, std::span<const UnitPiece> pieces);

// Bytes of memory that they take: `coding` is the site's.
int64_t gradient_state_bytes(const std::shared_ptr<SiteCoding>& coding, const Placement& placement, bool tied,
                             const UnitShard& shard, std::span<const UnitPiece> pieces);

}  // namespace thinwire
