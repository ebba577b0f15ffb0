// Which algorithm a collective takes, and the exact bytes that a rank sends by it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "parallel/collective/collectives.h"

namespace thinwire {

enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather };

// How a group is spread over nodes: `local` members on each of `nodes` nodes, members of a node next to each other in
// group order. nodes == 0: one member on each node, different numbers of them, or members of nodes interleaved.
struct NodeGrid {
  int nodes = 1, local = 1;
  bool two_level() const { return nodes > 1 && local > 1; }
  bool operator==(const NodeGrid&) const = default;
};
// nodes: the node of every member; empty: all are on one.
NodeGrid node_grid(std::span<const int> nodes, int members);

// kDirect, kRing or kTwoLevel: what `tuning` names if the group can do it (two levels need a two_level() grid, a sum,
// and CommTuning::two_levels), otherwise by the number of members and the bytes of the full vector.
Algorithm choose_algorithm(const CommTuning& tuning, Collective collective, std::span<const int> nodes, int members,
                           int64_t bytes, ReduceKind kind = ReduceKind::kSum);

// Bytes that this member would send: the collective's own code runs on the lane, but adds up its routes instead of
// sending. So a price cannot differ from what is sent. watched: the RehearsalWatch of the lane's Progress is called.
int64_t rehearsed_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& collective,
                        bool watched = false);
// The same without the checksums of messages: what a coded operation is compared with.
int64_t logical_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& collective);
// The data of a rehearsed collective: a view that nobody reads or writes.
View nowhere(DType dtype, int64_t count);

}  // namespace thinwire
