// Splits a unit into messages by what a rule selects.
#include "parallel/sites/unit_pieces.h"

#include <algorithm>
#include <utility>

#include "engine/base/core/check.h"

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

UnitPiece make_piece(Range range, uint32_t slot, int rule, const UnitShard& shard) {
  UnitPiece piece{range, slot, rule, {}, {}, {}, {}};
  PieceRanges& r = piece.ranges;
  r.refined = intersection(range, shard.gradients);
  r.mine = intersection(range, shard.optimizer);
  const int64_t end = shard.shard.bounds.empty() ? 0 : shard.shard.bounds.back();
  r.shard_bounds = bounds_within(shard.shard.bounds, {0, end}, range);
  r.refine_bounds = bounds_within(shard.refine.bounds, shard.gradients, r.refined);
  return piece;
}

std::vector<UnitPiece> split_unit(std::span<const UnitRule> rules, int unit_number, const UnitShard& shard,
                                  const Unit& unit, const ParamList& params) {
  std::vector<UnitPiece> pieces;
  const auto add = [&](Range range, int rule) {
    TW_CHECK(pieces.size() < kMostPieces, "a unit in more than ", kMostPieces, " messages");
    const size_t number = static_cast<size_t>(unit_number * kMostPieces) + pieces.size();
    UnitPiece piece = make_piece(range, static_cast<uint32_t>(number), rule, shard);
    const auto content_of = [&](const Range& of) {
      return MessageContent{matrices_in(of, unit, params), padding_in(of, unit)};
    };
    piece.shard = content_of(range);
    if (piece.ranges.refined.count > 0) piece.refine = content_of(piece.ranges.refined);
    if (piece.ranges.mine.count > 0) piece.mine = content_of(piece.ranges.mine);
    pieces.push_back(std::move(piece));
  };
  if (rules.empty())
    add({0, unit.count}, kNoRule);
  else
    for (const RuleRange& run : rule_ranges(rules, unit, params)) add(run.range, run.rule);
  return pieces;
}

}  // namespace thinwire
