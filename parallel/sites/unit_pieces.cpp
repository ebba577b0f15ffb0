// Splits a unit into messages by what a rule selects.
#include "parallel/sites/unit_pieces.h"

#include <algorithm>
#include <utility>

namespace thinwire {
namespace {

Range intersection(Range a, Range b) {
  const int64_t first = std::max(a.first, b.first), end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<int64_t>(0, end - first)};
}

// Bounds inside `whole`, relative to its start -> those inside `part`, relative to that.
std::vector<int64_t> bounds_within(std::span<const int64_t> bounds, Range whole, Range part) {
  std::vector<int64_t> inside;
  for (int64_t b : bounds) inside.push_back(std::clamp<int64_t>(b + whole.first - part.first, 0, part.count));
  return inside;
}

}  // namespace

UnitPiece make_piece(Range range, uint32_t slot, bool coded, const UnitShard& shard) {
  UnitPiece piece{range, slot, coded, {}, {}, {}, {}};
  PieceRanges& r = piece.ranges;
  r.refined = intersection(range, shard.gradients);
  r.mine = intersection(range, shard.optimizer);
  const int64_t end = shard.shard.bounds.empty() ? 0 : shard.shard.bounds.back();
  r.shard_bounds = bounds_within(shard.shard.bounds, {0, end}, range);
  r.refine_bounds = bounds_within(shard.refine.bounds, shard.gradients, r.refined);
  return piece;
}

std::vector<UnitPiece> split_unit(const SelectSpec* select, int unit_number, const UnitShard& shard, const Unit& unit,
                                  const ParamList& params, int layers, bool leave_whole) {
  std::vector<UnitPiece> pieces;
  const auto add = [&](Range range, bool coded) {
    if (range.count == 0) return;
    const size_t number = static_cast<size_t>(unit_number * kMostPieces) + pieces.size();
    UnitPiece piece = make_piece(range, static_cast<uint32_t>(number), coded, shard);
    piece.shard_matrices = matrices_in(range, unit, params);
    if (piece.ranges.refined.count > 0) piece.refine_matrices = matrices_in(piece.ranges.refined, unit, params);
    if (piece.ranges.mine.count > 0) piece.mine_matrices = matrices_in(piece.ranges.mine, unit, params);
    pieces.push_back(std::move(piece));
  };
  if (select == nullptr || (!leave_whole && select->layers.empty() && select->tensor_classes.empty())) {
    add({0, unit.count}, true);
    return pieces;
  }
  std::vector<Range> coded;
  if (selects_unit(*select, unit_number, layers)) coded = coded_ranges(*select, unit, params, leave_whole);
  int64_t at = 0;
  for (const Range& range : coded) {
    add({at, range.first - at}, false);
    add(range, true);
    at = range.first + range.count;
  }
  add({at, unit.count - at}, false);
  return pieces;
}

}  // namespace thinwire
