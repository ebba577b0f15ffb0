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

// Widths in ranks: weights | gradients | optimizer | replicas, each divides the next; secondary 0: none, else it
// divides weights. replicas is the size of the data-parallel group.
struct Placement {
  int weights = 1, gradients = 1, optimizer = 1, replicas = 1, secondary = 0;
  Hold hold = Hold::kUnit;
  EmbeddingSyncKind embedding = EmbeddingSyncKind::kFused;
  // false, for measuring: gathers and reductions are waited for where they start. Not those of a tied embedding, whose
  // other stage comes to them at another point of its plan.
  bool overlap = true;
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

// The groups of one unit on one data-parallel rank, and its ranges. With dp = k * gradients + j * weights + i a rank
// owns piece i of the unit as weights, piece j of that as gradients, piece k of that as optimizer state. `members` are
// indices of the data-parallel group (of stage_count stages, see below), ordered so that pieces lie in order of
// members.
struct ShardGroup {
  std::vector<int> members;     // dp + stage * replicas
  std::vector<int64_t> bounds;  // members + 1; elements, relative to the range that the group shards
};
struct UnitShard {
  Range weights, gradients, optimizer, secondary;  // elements relative to the unit's start
  ShardGroup gather;                               // unit over the weights' width
  ShardGroup shard;                                // unit over the gradients' width
  ShardGroup refine;                               // `gradients` over optimizer / gradients
  ShardGroup sync;                                 // `weights` over optimizer / weights
  ShardGroup keep;                                 // unit over the secondary width
  std::vector<int> replicas;                       // members that hold the same optimizer range
  bool counted = true;                             // one of the replicas counts in norms and saves: this one
};
// A tied embedding lives on two stages (stage_count 2, `stage` 0 = first, 1 = last). Fused: the two stages join the
// optimizer's shards when it is global, else the replicas. Two-step: they are always replicas, reduced in a second step
// (`replicas` then lists the same-dp rank of the other stage last, and dp replicas first).
UnitShard shard_unit(int64_t count, const Placement& placement, int dp_rank, int stage = 0, int stage_count = 1);

}  // namespace thinwire
