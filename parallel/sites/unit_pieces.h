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

// What lies in a message, positions relative to its start: whole matrices, and elements of no tensor.
struct MessageContent {
  std::vector<MatrixShape> matrices;
  std::vector<ElementRange> padding;
};

// A range of a unit that travels as one message, all of it under one rule.
struct UnitPiece {
  Range range;  // elements, relative to the unit's start
  uint32_t slot = 0;
  int rule = 0;  // see MessageKey
  // Of `range`, of ranges.refined and of ranges.mine: for the sums over the gradients' level, over the optimizer's
  // level, and between replicas.
  MessageContent shard, refine, mine;
  PieceRanges ranges;
  bool awaited = false;  // see MessageKey
  // content: outlives the key.
  MessageKey key(const MessageContent& content) const {
    return {.slot = slot, .rule = rule, .matrices = content.matrices, .padding = content.padding, .awaited = awaited};
  }
};

// A piece whose contents nobody knows.
UnitPiece make_piece(Range range, uint32_t slot, int rule, const UnitShard& shard);

// Tensors fall under the first of `rules` that selects them; without rules the unit is one piece, under kNoRule. Slots
// count from unit_number * kMostPieces on. More than kMostPieces pieces are a CHECK failure.
std::vector<UnitPiece> split_unit(std::span<const UnitRule> rules, int unit_number, const UnitShard& shard,
                                  const Unit& unit, const ParamList& params);

}  // namespace thinwire
