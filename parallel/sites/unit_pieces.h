// The messages of one unit's gradient: which elements travel together, compressed or as they are.
#pragma once

#include <vector>

#include "parallel/channel/channel.h"
#include "parallel/rules/message_rules.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/placement.h"

namespace thinwire {

inline constexpr int kMostPieces = 24;  // of a unit

// How a piece falls on the groups: bounds relative to the piece (shard) and to its part inside `gradients` (refine),
// and the part of it that is this rank's.
struct PieceRanges {
  std::vector<int64_t> shard_bounds, refine_bounds;
  Range refined, mine;  // relative to the unit's start
};

// A range of a unit that travels as one message: what a rule compresses and what it leaves as it is are different
// pieces.
struct UnitPiece {
  Range range;  // elements, relative to the unit's start
  uint32_t slot = 0;
  int rule = 0;  // see MessageKey
  // The matrices that lie whole in the piece as it is summed over the gradients' level, over the optimizer's level (its
  // part inside this rank's `gradients`), and between replicas (inside `optimizer`). Positions are relative to that.
  std::vector<MatrixShape> shard_matrices, refine_matrices, mine_matrices;
  PieceRanges ranges;
  bool awaited = false;  // see MessageKey
  MessageKey key(std::span<const MatrixShape> matrices) const {
    return {.slot = slot, .rule = rule, .matrices = matrices, .awaited = awaited};
  }
};

// A piece without matrices.
UnitPiece make_piece(Range range, uint32_t slot, int rule, const UnitShard& shard);

// Tensors fall under the first of `rules` that selects them; without rules the unit is one piece. `unit_number` numbers
// the slots.
std::vector<UnitPiece> split_unit(std::span<const UnitRule> rules, int unit_number, const UnitShard& shard,
                                  const Unit& unit, const ParamList& params);

}  // namespace thinwire
