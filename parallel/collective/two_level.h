// Collectives in two levels: inside each node first, then among the ranks with the same place on their nodes. All parts
// are routes on parts of the group.
//
// For groups with a two_level() grid (tuning.h). Sums: the members of a node in rank order, then the nodes in order;
// the sum of a node is rounded to the wire's dtype once. Plain ones destroy `whole` outside the result, as ring
// algorithms do. Contracts otherwise as in collectives.h and coded.h.
#pragma once

#include "parallel/collective/coded.h"

namespace thinwire {

// Where I am: on node `node` of `nodes`, at place `place` of `local`. Members of a node are next to each other.
struct GridPlace {
  int nodes, local, node, place;
  explicit GridPlace(const GroupLane& lane);
  int member(int of_node) const { return of_node * local + place; }  // at my place
  Circle inside() const { return {node * local, 1, local, place}; }  // my node
  Circle across() const { return {place, local, nodes, node}; }      // my place on each node
  // The slices of node j, among the members of mine.
  RouteGroup block(std::span<const int64_t> bounds, int j) const { return {inside(), bounds, j * local}; }
  // The slices of my place, among its members.
  RouteGroup column(std::span<const int64_t> bounds) const { return {across(), bounds, place, local}; }
};

// See coded_reduce_scatter().
Task two_level_reduce_scatter(GroupLane lane, CodedCall intra, CodedCall inter, View whole, Bounds bounds, View out,
                              bool accumulate);
// Plain; kSum.
Task two_level_all_reduce(GroupLane lane, View data);
Task two_level_all_gather(GroupLane lane, View whole, Bounds bounds);

// With the algorithm that choose_algorithm() gives.
Task plain_all_reduce(const GroupLane& lane, View data, ReduceKind kind);
Task plain_reduce_scatter(const GroupLane& lane, View whole, Bounds bounds, View out, bool accumulate);
// mine: my range of `whole`, or, where it is direct, memory outside it.
Task plain_all_gather(const GroupLane& lane, View mine, View whole, Bounds bounds);

}  // namespace thinwire
