// A placement: how wide weights, gradients, optimizer state and a secondary copy of the weights are spread over the
// data-parallel ranks of one (pipeline, tensor) coordinate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

enum class Level : uint8_t { kReplicated, kPair, kNode, kGlobal };
inline const char* name_of(Level level) {  // as the configuration spells it
  constexpr const char* kNames[] = {"replicated", "pair", "node", "global"};
  return kNames[static_cast<int>(level)];
}
enum class Hold : uint8_t { kUnit, kMicroBatch, kStep };  // how long gathered weights stay
enum class EmbeddingSyncKind : uint8_t { kFused, kTwoStep };

// As configured. ZeRO-1 = (replicated, replicated, global), ZeRO-2 = (replicated, global, global), ZeRO-3 = (global,
// global, global); hpZ adds secondary = node; the 3-level partition is (pair, node, global); MiCS (node, node, node).
struct PlacementLevels {
  Level weights = Level::kReplicated, gradients = Level::kReplicated, optimizer = Level::kReplicated;
  Level secondary = Level::kReplicated;  // kReplicated: none
};

// Widths in ranks, each divides the next: weights, gradients, optimizer, replicas (all data-parallel ranks). secondary
// divides weights; 0: none.
struct Placement {
  int weights = 1, gradients = 1, optimizer = 1, replicas = 1, secondary = 0;
  Hold hold = Hold::kUnit;
  EmbeddingSyncKind embedding = EmbeddingSyncKind::kFused;
  // false, for measuring: gathers and reductions are waited for where they start. Not those of a tied embedding: its
  // other stage starts them at another point of its plan, and the wait could deadlock.
  bool overlap = true;
  bool operator==(const Placement&) const = default;
};

// nodes: node number of each data-parallel rank. Throws Error(kBadConfig) with the reason: levels that do not nest
// (weights wider than gradients, gradients wider than optimizer), a pair without an even number of ranks, nodes with
// different numbers of ranks of the group or whose ranks are not consecutive, a secondary copy not narrower than the
// weights.
Placement resolve_placement(const PlacementLevels& levels, const std::vector<int>& nodes);

struct Range {
  int64_t first = 0, count = 0;
};

// Splits [0, count) into `parts` on multiples of kQuantum: parts + 1 bounds. count is a multiple of kQuantum.
std::vector<int64_t> split_bounds(int64_t count, int parts);

// The groups and ranges of a unit on data-parallel rank dp = r * optimizer + k * gradients + j * weights + i: it owns
// piece i of the unit as weights, piece j of that as gradients, piece k of that as optimizer state, in replica r.
// `members` are indices of the data-parallel group (of stage_count stages, see below), in the order of their pieces.
struct ShardGroup {
  std::vector<int> members;     // dp + stage * replicas
  std::vector<int64_t> bounds;  // members + 1; elements, relative to the range that the group shards
};
struct UnitShard {
  Range weights, gradients, optimizer, secondary;  // elements relative to the unit's start
  ShardGroup gather;                               // cuts the unit into weights ranges
  ShardGroup shard;                                // cuts the unit into gradients ranges
  ShardGroup refine;                               // cuts this rank's `gradients` into optimizer ranges
  ShardGroup sync;                                 // cuts this rank's `weights` into optimizer ranges
  ShardGroup keep;                                 // cuts the unit into secondary ranges; empty without a secondary
  std::vector<int> replicas;                       // members that hold the same optimizer range
  bool counted = true;                             // of the replicas, this one counts in norms and saves
};
// A tied embedding lives on two stages (stage_count 2, `stage` 0 = first, 1 = last). Fused: both stages together shard
// the optimizer state when its level is global, else they are replicas in one reduction. Two-step: always replicas,
// reduced in a second step (`replicas` lists the own stage's first and the other stage's rank of the same dp last).
UnitShard shard_unit(int64_t count, const Placement& placement, int dp_rank, int stage = 0, int stage_count = 1);

}  // namespace thinwire
