// Two levels put together from direct exchanges on parts of the group.
#include "parallel/collective/two_level.h"

#include "parallel/collective/node_seat.h"
#include "parallel/collective/rank_sum.h"
#include "parallel/collective/tuning.h"

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
  Task reduce = direct_reduce_scatter(inner, data, bounds, mine, false);
  co_await reduce;
  if (mine.count() > 0) {
    Task sum = direct_all_reduce(outer, mine, ReduceKind::kSum);
    co_await sum;
  }
  Task gather = direct_all_gather(inner, data, bounds);
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

// --- the choice -------------------------------------------------------------------------------------------------

namespace {

// A group of one: the sum is the contribution.
Task reduce_alone(GroupLane, View whole, View out, bool accumulate) {
  const void* source = whole.data;
  if (accumulate || out.data != whole.data)
    combine_in_rank_order(ReduceKind::kSum, whole.dtype, &source, 1, out.dtype, out.data, out.count(), accumulate);
  co_return;
}

}  // namespace

Task plain_all_reduce(const GroupLane& lane, View data, ReduceKind kind) {
  const auto bytes = static_cast<int64_t>(data.bytes());
  if (lane.size() == 1 || bytes == 0) return nothing(lane);
  switch (choose_algorithm(*lane.tuning, Verb::kAllReduce, lane.nodes, lane.size(), bytes, kind)) {
    case Algorithm::kRing:
      return ring_all_reduce(lane, data, kind);
    case Algorithm::kTwoLevel:
      return two_level_all_reduce(lane, data);
    default:
      if (bytes <= lane.tuning->small_bytes) return small_all_reduce(lane, data, kind);
      return direct_all_reduce(lane, data, kind);
  }
}

Task plain_reduce_scatter(const GroupLane& lane, View whole, Bounds bounds, View out, bool accumulate) {
  if (whole.count() == 0) return nothing(lane);
  if (lane.size() == 1) return reduce_alone(lane, whole, out, accumulate);
  const auto bytes = static_cast<int64_t>(whole.bytes());
  switch (choose_algorithm(*lane.tuning, Verb::kReduceScatter, lane.nodes, lane.size(), bytes)) {
    case Algorithm::kRing:
      return ring_reduce_scatter(lane, whole, bounds, out, accumulate, ReduceKind::kSum);
    case Algorithm::kTwoLevel:
      return two_level_reduce_scatter(lane, whole, std::move(bounds), out, accumulate);
    default:
      return direct_reduce_scatter(lane, whole, bounds, out, accumulate);
  }
}

}  // namespace thinwire
