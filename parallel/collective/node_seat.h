// How the members of a two_level() group lie on its nodes, and the parts of it that two-level collectives work on.
#pragma once

#include "engine/base/core/check.h"
#include "parallel/collective/collectives.h"
#include "parallel/collective/tuning.h"

namespace thinwire {

// Where I am: node `node` of `nodes`, place `place` of `local`. Members of a node are next to each other.
struct NodeSeat {
  int nodes, local, node, place;
  explicit NodeSeat(const GroupLane& lane) : NodeSeat(node_grid(lane.nodes, lane.size()), lane.me) {}
  NodeSeat(const NodeGrid& grid, int me)
      : nodes(grid.nodes), local(grid.local), node(me / grid.local), place(me % grid.local) {
    TW_CHECK(grid.two_level(), "a group that does not lie evenly on several nodes");
  }
  int member(int of_node, int of_place) const { return of_node * local + of_place; }
};

inline GroupLane inside_node(const GroupLane& lane, const NodeSeat& g) {
  GroupLane part = lane;
  part.ranks = lane.ranks.subspan(static_cast<size_t>(g.member(g.node, 0)), static_cast<size_t>(g.local));
  part.nodes = {};
  part.me = g.place;
  return part;
}

// `ranks` gets the world ranks at my place of each node, and must live as long as the lane.
inline GroupLane across_nodes(const GroupLane& lane, const NodeSeat& g, Scratch<int>& ranks) {
  for (int j = 0; j < g.nodes; ++j) ranks[j] = lane.world_rank(g.member(j, g.place));
  GroupLane part = lane;
  part.ranks = std::span<const int>(ranks.data(), static_cast<size_t>(g.nodes));
  part.nodes = {};
  part.me = g.node;
  return part;
}

// Bounds of node j's ranges, from the first of them.
inline Bounds block_bounds(const GroupLane& lane, const NodeSeat& g, const Bounds& bounds, int j) {
  Bounds block(lane.pool(), g.local + 1);
  for (int l = 0; l <= g.local; ++l) block[l] = bounds[g.member(j, 0) + l] - bounds[g.member(j, 0)];
  return block;
}

}  // namespace thinwire
