// The messages of one unit's gradient: which elements travel together, compressed or as they are.
#pragma once

#include <vector>

#include "parallel/channel/channel.h"
#include "parallel/rules/message_rules.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/placement.h"

namespace thinwire {

inline constexpr int kMostPieces = 24;  // of a unit

// How the groups of a UnitShard cut a piece.
struct PieceRanges {
  std::vector<int64_t> shard_bounds, refine_bounds;  // relative to the piece's start; to the start of `refined`
  Range refined, mine;  // the piece inside `gradients`, inside `optimizer`; relative to the unit's start
};

// A range of a unit that travels as one message, all of it under one rule.
struct UnitPiece {
  Range range;  // elements, relative to the unit's start
  uint32_t slot = 0;
  int rule = 0;  // see MessageKey
  // The matrices that lie whole in `range`, in ranges.refined and in ranges.mine, positions relative to the start of
  // that: for the sums over the gradients' level, over the optimizer's level, and between replicas.
  std::vector<MatrixShape> shard_matrices, refine_matrices, mine_matrices;
  PieceRanges ranges;
  bool awaited = false;  // see MessageKey
  MessageKey key(std::span<const MatrixShape> matrices) const {
    return {.slot = slot, .rule = rule, .matrices = matrices, .awaited = awaited};
  }
};

// A piece without matrices.
UnitPiece make_piece(Range range, uint32_t slot, int rule, const UnitShard& shard);

// Tensors fall under the first of `rules` that selects them; without rules the unit is one piece, under kNoRule. Slots
// count from unit_number * kMostPieces on. More than kMostPieces pieces are a CHECK failure.
std::vector<UnitPiece> split_unit(std::span<const UnitRule> rules, int unit_number, const UnitShard& shard,
                                  const Unit& unit, const ParamList& params);

}  // namespace thinwire
