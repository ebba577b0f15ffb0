// Which algorithm a collective takes, and the exact bytes that each algorithm makes a rank send.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "parallel/collective/collectives.h"

namespace thinwire {

enum class Verb : uint8_t { kAllReduce, kReduceScatter, kAllGather };

// How a group lies on nodes: `local` members on each of `nodes` nodes, members of a node next to each other in group
// order. nodes == 0: one on each, unevenly or interleaved. An empty list of nodes: all on one.
struct NodeGrid {
  int nodes = 1, local = 1;
  bool two_level() const { return nodes > 1 && local > 1; }
  bool operator==(const NodeGrid&) const = default;
};
NodeGrid node_grid(std::span<const int> nodes, int members);

// kDirect, kRing or kTwoLevel: what the configuration names if the group can do it (two levels need a two_level() grid,
// a sum, and CommTuning::two_levels), otherwise by ranks and bytes (of the whole vector).
Algorithm choose_algorithm(const CommTuning& tuning, Verb verb, std::span<const int> nodes, int members, int64_t bytes,
                           ReduceKind kind = ReduceKind::kSum);

// Bytes that this member would send: the verb runs on the lane as it is, but its routes are added up instead of run. So
// a price cannot differ from what is sent. watched: whoever watches the lane's Progress (rehearsal.h) is told.
int64_t rehearsed_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& verb, bool watched = false);
// The same without the checksums that messages carry: what a coded operation is compared with.
int64_t logical_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& verb);
// What a rehearsed verb is handed as data: nobody looks behind it.
View nowhere(DType dtype, int64_t count);

}  // namespace thinwire
