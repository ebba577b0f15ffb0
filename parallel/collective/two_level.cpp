// Two levels put together from routes, and the choice among plain algorithms.
#include "parallel/collective/two_level.h"

#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_on_device.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"

namespace thinwire {

GridPlace::GridPlace(const GroupLane& lane) {
  const NodeGrid grid = node_grid(lane.nodes, lane.size());
  TW_CHECK(grid.two_level(), "a group that does not lie evenly on several nodes");
  nodes = grid.nodes, local = grid.local, node = lane.me / local, place = lane.me % local;
}

Task two_level_all_reduce(GroupLane lane, View data) {
  const GridPlace g(lane);
  const Bounds bounds = part_bounds(lane.pool(), data.count(), g.local);
  const RouteGroup inside(g.inside(), {bounds.data(), static_cast<size_t>(g.local) + 1});
  const View mine = part_of(data, inside.mine());
  Task reduce = direct_reduce_scatter(lane, plain_call(), inside, data, data, inside.mine().first, false);
  co_await reduce;
  if (mine.count() > 0) {
    const Bounds parts = part_bounds(lane.pool(), mine.count(), g.nodes);
    const RouteGroup across(g.across(), {parts.data(), static_cast<size_t>(g.nodes) + 1});
    Task sum = direct_all_reduce(lane, plain_call(), plain_call(), across, mine);
    co_await sum;
  }
  Task gather = route_all_gather(lane, plain_call(), inside, mine, data, Algorithm::kDirect, nullptr, true);
  co_await gather;
}

// The blocks of the other nodes are summed first: while one travels, the next is summed inside the node. Between nodes
// nothing waits for a window: all that comes is posted at the start, since nodes work on different blocks.
Task two_level_reduce_scatter(GroupLane lane, CodedCall intra, CodedCall inter, View whole, Bounds bounds, View out,
                              bool accumulate) {
  const bool in_place = intra.in_place;
  const GridPlace g(lane);
  const std::span<const int64_t> all = group_of(lane, bounds).bounds;
  const RouteGroup column = g.column(all);
  const DType sum_type = sum_dtype(inter.coder, whole.dtype);
  const int64_t chunk = in_place ? kUncut : coded_chunk_elements(*lane.tuning, sum_type, inter.coder);
  const int64_t own = pieces_of(column.mine().count, chunk);
  int64_t elements = 0, leaving = -own;
  for (int j = 0; j < g.nodes; ++j) {
    elements += column.slice(j).count;
    leaving += pieces_of(column.slice(j).count, chunk);
  }
  const VerbSpace space(lane, in_place ? 0 : elements * static_cast<int64_t>(size_of(sum_type)));
  const View sums = in_place ? whole : View(space.data(), sum_type, {elements});
  int step = 0;
  int64_t tick = 0, at = 0;
  const auto next_block = [&](int64_t due) {
    if (step == g.nodes || tick > due) return Task();
    const int j = column.to(++step);
    const Slice slice = column.slice(j);
    Task task = direct_reduce_scatter(lane, intra, g.block(all, j), whole, sums, in_place ? slice.first : at, false);
    tick += pieces_of(slice.count, chunk);
    at += slice.count;
    return task;
  };
  RouteRun run(lane, g.nodes, inter, sum_type, chunk);
  run.flows[0] = {.ahead = static_cast<int>(std::max<int64_t>(1, own)),
                  .exchanges = 1,
                  .group = std::max<int64_t>(1, leaving),
                  .own_ahead = leaving};
  run.whole = sums;
  run.out = out;
  run.accumulate = accumulate;
  run.before = std::ref(next_block);
  run.logical_to = intra.counters;
  run.logical_dtype = whole.dtype;
  column_reduce_scatter_route(run, column, chunk, in_place);
  Task task = run_route(lane, std::move(run));
  co_await task;
}

Task two_level_all_gather(GroupLane lane, View whole, Bounds bounds) {
  const GridPlace g(lane);
  const std::span<const int64_t> all = group_of(lane, bounds).bounds;
  const auto spread = [&](int j) {
    const RouteGroup block = g.block(all, j);
    return route_all_gather(lane, plain_call(), block, part_of(whole, block.mine()), whole, Algorithm::kDirect, nullptr,
                            true);
  };
  // What is here already goes round the node while the network works.
  int steps = 0;
  const auto own_block = [&](int64_t tick) { return tick > 0 && steps++ == 0 ? spread(g.node) : Task(); };
  RouteRun run(lane, g.nodes, plain_call(), whole.dtype, kUncut);
  run.flows[0] = {.ahead = 1, .exchanges = 1, .own_ahead = 1};
  run.mine = part_of(whole, g.column(all).mine());
  run.whole = whole;
  run.before = std::ref(own_block);
  direct_all_gather_route(run, g.column(all));
  Task network = run_route(lane, std::move(run));
  co_await network;
  for (int i = 1; i < g.nodes; ++i) {
    Task block = spread(g.column(all).to(i));
    co_await block;
  }
}

// --- the choice -------------------------------------------------------------------------------------------------

Task plain_all_reduce(const GroupLane& lane, View data, ReduceKind kind) {
  const auto bytes = static_cast<int64_t>(data.bytes());
  if (lane.size() == 1 || bytes == 0) return nothing(lane);
  const Algorithm way = choose_algorithm(*lane.tuning, Collective::kAllReduce, lane.nodes, lane.size(), bytes, kind);
  if (way == Algorithm::kTwoLevel) return two_level_all_reduce(lane, data);
  if (way == Algorithm::kDirect && bytes <= lane.tuning->small_bytes) return small_all_reduce(lane, data, kind);
  return coded_all_reduce(lane, plain_call(kind), plain_call(kind), data, way);
}

Task plain_reduce_scatter(const GroupLane& lane, View whole, Bounds bounds, View out, bool accumulate) {
  if (whole.count() == 0) return nothing(lane);
  const Algorithm way = choose_algorithm(*lane.tuning, Collective::kReduceScatter, lane.nodes, lane.size(),
                                         static_cast<int64_t>(whole.bytes()));
  return coded_reduce_scatter(lane, plain_call(), whole, std::move(bounds), out, accumulate, way, plain_call());
}

Task plain_all_gather(const GroupLane& lane, View mine, View whole, Bounds bounds) {
  const auto bytes = static_cast<int64_t>(whole.bytes());
  if (lane.size() == 1 || bytes == 0) return nothing(lane);
  const Algorithm way = choose_algorithm(*lane.tuning, Collective::kAllGather, lane.nodes, lane.size(), bytes);
  if (way == Algorithm::kTwoLevel) return two_level_all_gather(lane, whole, std::move(bounds));
  return coded_all_gather(lane, plain_call(), mine, whole, std::move(bounds), way);
}

}  // namespace thinwire
