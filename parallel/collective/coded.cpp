// Coded collectives: routes with coders. Two levels stand in coded_gather.cpp and coded_two_level.cpp.
#include "parallel/collective/coded.h"

#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"

namespace thinwire {
namespace {

RouteRun coded_run(const GroupLane& lane, int64_t stops, const Cut& cut, const CodedCall& call, DType dtype) {
  RouteRun run(lane, stops, cut.chunk());
  run.calls[0] = run.calls[1] = call;
  run.dtypes[0] = run.dtypes[1] = dtype;
  run.seat.ranks = lane.size();
  return run;
}

// A slice leaves in full before the next but one is begun: its payloads have places of their own.
RouteRun ring_run(const GroupLane& lane, const CodedCall& call, const Bounds& bounds, DType dtype) {
  const Cut cut(*lane.tuning, dtype, call.coder);
  RouteRun run = coded_run(lane, lane.size(), cut, call, dtype);
  const int64_t most = std::max<int64_t>(1, cut.pieces(longest_slice(bounds, lane.size())));
  run.flows[0] = {.exchanges = 2, .group = most, .own_ahead = most, .shift = most};
  return run;
}

// A group of one: the sum is the contribution.
Task scatter_alone(GroupLane, View whole, View out, bool accumulate) {
  const void* source = whole.data;
  if (whole.count() > 0 && (accumulate || out.data != source || out.dtype != whole.dtype))
    combine_in_rank_order(ReduceKind::kSum, whole.dtype, &source, 1, out.dtype, out.data, whole.count(), accumulate);
  co_return;
}

Task scatter(const GroupLane& lane, const CodedCall& call, const Seat& seat, View whole, const Bounds& bounds, View out,
             bool accumulate, WireCounters* logical_to) {
  if (lane.size() == 1) return scatter_alone(lane, whole, out, accumulate);
  RouteRun run = coded_run(lane, lane.size(), Cut(*lane.tuning, whole.dtype, call.coder), call, whole.dtype);
  run.seat = seat;
  run.whole = whole;
  run.out = out;
  run.accumulate = accumulate;
  run.logical_to = logical_to;
  run.logical_dtype = whole.dtype;
  direct_reduce_scatter_route(run, group_of(lane, bounds));
  return run_route(lane, std::move(run));
}

// ring: the payloads go round as they were packed by the owner, who absorbs them like everybody.
Task gather(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds, bool ring, TurnQueue* queue) {
  const View range = part_of(whole, slice_of(bounds, lane.me));
  const View source = as_it_travels(call, mine, range);
  if (lane.size() == 1) {
    convert(source, range);
    co_return;
  }
  RouteRun run = ring ? ring_run(lane, call, bounds, source.dtype)
                      : coded_run(lane, lane.size(), Cut(*lane.tuning, source.dtype, call.coder), call, source.dtype);
  run.mine = source;
  run.whole = whole;
  run.queue = queue;
  run.logical_to = call.counters;
  run.logical_dtype = whole.dtype;
  if (ring) {
    ring_all_gather_route(run, group_of(lane, bounds), run.flows[0].group);
  } else {
    direct_all_gather_route(run, group_of(lane, bounds));
  }
  Task task = run_route(lane, std::move(run));
  co_await task;
}

Task ring_scatter(const GroupLane& lane, const CodedCall& call, View whole, const Bounds& bounds, View out,
                  bool accumulate) {
  if (lane.size() == 1) return scatter_alone(lane, whole, out, accumulate);
  RouteRun run = ring_run(lane, call, bounds, whole.dtype);
  run.dtypes[1] = sum_dtype(call.coder, whole.dtype);
  run.whole = whole;
  run.out = out;
  run.accumulate = accumulate;
  run.logical_to = call.counters;
  run.logical_dtype = whole.dtype;
  ring_reduce_scatter_route(run, group_of(lane, bounds), run.flows[0].group, false);
  return run_route(lane, std::move(run));
}

// Both codings have payloads of known length: the sums of piece k go back while piece k + 1 arrives.
Task all_reduce_at_once(const GroupLane& lane, const CodedCall& call, const CodedCall& back, View data) {
  const int n = lane.size();
  const Bounds bounds = part_bounds(lane.pool(), data.count(), n, common_unit(call.coder, back.coder));
  const Cut cut(*lane.tuning, data.dtype, call.coder, back.coder);
  RouteRun run = coded_run(lane, 2 * n, cut, call, data.dtype);
  run.calls[1] = back;
  run.dtypes[1] = sum_dtype(back.coder, data.dtype);
  run.whole = data;
  run.flow_count = 2;
  const bool plain = back.coder == nullptr;
  if (plain) run.flows[1].ahead = 1;  // in place: only what has been sent may be overwritten
  run.logical_to = call.counters;
  run.logical_dtype = data.dtype;
  direct_all_reduce_route(run, group_of(lane, bounds), plain ? 2 : 1);
  return run_route(lane, std::move(run));
}

// A scatter and a gather, one behind the other: rings, and framed payloads on either way. The gather takes no turn
// among all-gathers: it would be taken here, behind the scatter, and ranks whose scatters end in another order would
// wait for each other for ever.
Task all_reduce_in_turn(GroupLane lane, CodedCall call, CodedCall back, View data, bool ring) {
  Bounds bounds = part_bounds(lane.pool(), data.count(), lane.size(), common_unit(call.coder, back.coder));
  const int64_t own = slice_of(bounds, lane.me).count;
  const DType sum_type = sum_dtype(back.coder, data.dtype);
  const Scratch<char> space(lane.pool(), own * static_cast<int64_t>(size_of(sum_type)));
  const View sum(space.data(), sum_type, {own});
  Task reduce = ring ? ring_scatter(lane, call, data, bounds, sum, false)
                     : scatter(lane, call, {.ranks = lane.size()}, data, bounds, sum, false, call.counters);
  co_await reduce;
  Task spread = gather(lane, back, sum, data, std::move(bounds), ring, nullptr);
  co_await spread;
}

}  // namespace

Task scatter_pieces(GroupLane lane, CodedCall call, Seat seat, View whole, Bounds bounds, View out, bool accumulate) {
  return scatter(lane, call, seat, whole, bounds, out, accumulate, nullptr);
}

Task coded_reduce_scatter(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate) {
  return scatter(lane, call, {.ranks = lane.size()}, whole, bounds, out, accumulate, call.counters);
}

Task coded_all_gather(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds) {
  return gather(lane, call, mine, whole, std::move(bounds), false, lane.gathers);
}

Task coded_all_reduce(GroupLane lane, CodedCall scatter, CodedCall gather, View data) {
  if (lane.size() == 1) return nothing(lane);
  if (is_framed(scatter.coder) || is_framed(gather.coder))
    return all_reduce_in_turn(lane, scatter, gather, data, false);
  return all_reduce_at_once(lane, scatter, gather, data);
}

Task coded_ring_reduce_scatter(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate) {
  return ring_scatter(lane, call, whole, bounds, out, accumulate);
}

Task coded_ring_all_reduce(GroupLane lane, CodedCall call, CodedCall gather, View data) {
  return lane.size() == 1 ? nothing(lane) : all_reduce_in_turn(lane, call, gather, data, true);
}

Task coded_send(GroupLane lane, CodedCall call, View data, int peer) {
  RouteRun run = coded_run(lane, 1, Cut(*lane.tuning, data.dtype, call.coder), call, data.dtype);
  run.whole = data;
  run.message = true;
  run.queue = call.packing;
  run.logical_to = call.counters;
  run.logical_dtype = data.dtype;
  message_route(run, peer, true, data.count());
  return run_route(lane, std::move(run));
}

Task coded_receive(GroupLane lane, CodedCall call, View data, int peer) {
  RouteRun run = coded_run(lane, 1, Cut(*lane.tuning, data.dtype, call.coder), call, data.dtype);
  run.whole = data;
  run.message = true;
  // A message has one tag: lengths and payloads take turns on it.
  if (is_framed(call.coder)) run.flows[0].ahead = 1;
  message_route(run, peer, false, data.count());
  return run_route(lane, std::move(run));
}

Task coded_all_to_all(GroupLane lane, CodedCall call, View from, Bounds from_bounds, View to, Bounds to_bounds) {
  RouteRun run = coded_run(lane, 2 * lane.size(), Cut(*lane.tuning, from.dtype, call.coder), call, from.dtype);
  run.whole = from;
  run.mine = to;
  run.kept_from = part_of(from, slice_of(from_bounds, lane.me));
  run.kept_to = part_of(to, slice_of(to_bounds, lane.me));
  run.logical_to = call.counters;
  run.logical_dtype = from.dtype;
  // Where a part starts is the sender's knowledge alone, so pieces are numbered within their part; with a state, which
  // has a place for every element, by the place in `from`, which is then the same on all ranks.
  all_to_all_route(run, group_of(lane, from_bounds), group_of(lane, to_bounds), call.state != nullptr);
  return run_route(lane, std::move(run));
}

}  // namespace thinwire
