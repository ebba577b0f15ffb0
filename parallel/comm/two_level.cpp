// Two levels put together from direct exchanges on parts of the group.
#include "parallel/comm/two_level.h"

#include "parallel/comm/node_seat.h"
#include "parallel/comm/rank_sum.h"

namespace thinwire {
namespace {

View block_of(View whole, const NodeSeat& g, const Bounds& bounds, int j) {
  const int64_t first = bounds[g.member(j, 0)];
  return whole.element_range(first, bounds[g.member(j, 0) + g.local] - first);
}
View range_of(View whole, const Bounds& bounds, int member) {
  return whole.element_range(bounds[member], bounds[member + 1] - bounds[member]);
}

void send_view(Exchange& exchange, View view, int peer) {
  for (size_t first = 0; first < view.bytes(); first += kLargestMessage)
    exchange.send(static_cast<char*>(view.data) + first, std::min(kLargestMessage, view.bytes() - first), peer);
}
void receive_view(Exchange& exchange, char* data, size_t bytes, int peer) {
  for (size_t first = 0; first < bytes; first += kLargestMessage)
    exchange.receive(data + first, std::min(kLargestMessage, bytes - first), peer);
}

}  // namespace

Task two_level_all_reduce(GroupLane lane, View data) {
  const NodeSeat g(lane);
  const GroupLane inner = inside_node(lane, g);
  Scratch<int> column(lane.pool(), g.nodes);
  const GroupLane outer = across_nodes(lane, g, column);
  const Bounds bounds = even_bounds(lane.pool(), data.count(), g.local);
  const View mine = range_of(data, bounds, g.place);
  const auto copy = [&] {
    return Bounds(lane.pool(), std::span<const int64_t>(bounds.data(), static_cast<size_t>(g.local) + 1));
  };
  Task reduce = direct_reduce_scatter(inner, data, copy(), mine, false);
  co_await reduce;
  if (mine.count() > 0) {
    Task sum = direct_all_reduce(outer, mine, ReduceKind::kSum);
    co_await sum;
  }
  Task gather = direct_all_gather(inner, data, copy());
  co_await gather;
}

Task two_level_reduce_scatter(GroupLane lane, View whole, Bounds bounds, View out, bool accumulate) {
  const NodeSeat g(lane);
  const GroupLane inner = inside_node(lane, g);
  const View mine = range_of(whole, bounds, lane.me);
  // Node sums of my range from the other nodes land here, in node order without mine.
  const size_t stride = (mine.bytes() + 63) / 64 * 64;
  const Scratch<char> landing(lane.pool(), static_cast<int64_t>(stride) * (g.nodes - 1));
  const auto landing_of = [&](int j) { return landing.data() + static_cast<size_t>(j < g.node ? j : j - 1) * stride; };
  Exchange arrivals(lane), departures(lane);
  for (int j = 0; j < g.nodes; ++j) {
    if (j != g.node && mine.count() > 0)
      receive_view(arrivals, landing_of(j), mine.bytes(), lane.world_rank(g.member(j, g.place)));
  }
  // The blocks of the other nodes first: while one travels, the next is summed inside the node.
  for (int step = 1; step <= g.nodes; ++step) {
    const int j = (g.node + step) % g.nodes;
    const View column = range_of(whole, bounds, g.member(j, g.place));
    Task reduce =
        direct_reduce_scatter(inner, block_of(whole, g, bounds, j), block_bounds(lane, g, bounds, j), column, false);
    co_await reduce;
    if (j != g.node && column.count() > 0) send_view(departures, column, lane.world_rank(g.member(j, g.place)));
  }
  co_await arrivals;
  if (mine.count() > 0) {
    Scratch<const void*> sources(lane.pool(), g.nodes);
    for (int j = 0; j < g.nodes; ++j) sources[j] = j == g.node ? mine.data : landing_of(j);
    combine_in_rank_order(ReduceKind::kSum, whole.dtype, sources.data(), g.nodes, out.dtype, out.data, mine.count(),
                          accumulate);
  }
  co_await departures;
}

Task two_level_all_gather(GroupLane lane, View whole, Bounds bounds) {
  const NodeSeat g(lane);
  const GroupLane inner = inside_node(lane, g);
  const View mine = range_of(whole, bounds, lane.me);
  Exchange network(lane);
  for (int i = 1; i < g.nodes; ++i) {
    const int j = (g.node + g.nodes - i) % g.nodes;
    const View column = range_of(whole, bounds, g.member(j, g.place));
    if (column.count() > 0)
      receive_view(network, static_cast<char*>(column.data), column.bytes(), lane.world_rank(g.member(j, g.place)));
  }
  for (int i = 1; i < g.nodes && mine.count() > 0; ++i)
    send_view(network, mine, lane.world_rank(g.member((g.node + i) % g.nodes, g.place)));
  // What is here already goes round the node while the network works.
  Task own = direct_all_gather(inner, block_of(whole, g, bounds, g.node), block_bounds(lane, g, bounds, g.node));
  co_await own;
  co_await network;
  for (int i = 1; i < g.nodes; ++i) {
    const int j = (g.node + i) % g.nodes;
    Task spread = direct_all_gather(inner, block_of(whole, g, bounds, j), block_bounds(lane, g, bounds, j));
    co_await spread;
  }
}

}  // namespace thinwire
