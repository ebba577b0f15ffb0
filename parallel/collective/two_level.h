// Collectives in two levels: inside each node first, then among the ranks with the same place on their nodes.
//
// For groups with a two_level() grid (tuning.h). Sums: the members of a node in rank order, then the nodes in order;
// the sum of a node is rounded to the wire's dtype once. Destroys `whole` outside the result, as ring algorithms do.
// Contracts otherwise as in collectives.h.
#pragma once

#include "parallel/collective/collectives.h"

namespace thinwire {

Task two_level_all_reduce(GroupLane lane, View data);  // kSum
Task two_level_reduce_scatter(GroupLane lane, View whole, Bounds bounds, View out, bool accumulate);
Task two_level_all_gather(GroupLane lane, View whole, Bounds bounds);

// With the algorithm that choose_algorithm() gives.
Task plain_all_reduce(const GroupLane& lane, View data, ReduceKind kind);
Task plain_reduce_scatter(const GroupLane& lane, View whole, Bounds bounds, View out, bool accumulate);

}  // namespace thinwire
