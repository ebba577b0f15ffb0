// How the members of a two_level() group lie on its nodes, for coded collectives in two levels.
#pragma once

#include "engine/base/core/check.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/tuning.h"

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

}  // namespace thinwire
