// The routes of the algorithms, the verbs made of them with or without compression, and the compressed verbs.
#include "parallel/collective/coded.h"

#include <algorithm>

#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_on_device.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"

namespace thinwire {

// --- routes: who sends which slice to whom, and what becomes of it there --------------------------------------------
namespace {

// The slices of all others leave for their owners; returns the stop at which mine is added up.
Stop scatter(RouteSink& sink, const RouteGroup& g) {
  for (int i = 1; i < g.size(); ++i) {
    const Slice slice = g.slice(g.to(i));
    sink.add({.slice = slice, .to = g.one(g.to(i)), .place = i - 1, .own = {Space::kWhole, slice.first}});
  }
  return {.kind = StopKind::kAdd, .slice = g.mine(), .from = g.all, .own = {Space::kWhole, g.mine().first}};
}

// What `peer` sends is stored where it belongs.
Stop stored(const Slice& slice, int peer, int flow, int place) {
  return {.kind = StopKind::kStore,
          .slice = slice,
          .from = Circle::one(peer),
          .flow = flow,
          .place = place,
          .result = {Space::kWhole, slice.first}};
}

}  // namespace

void direct_reduce_scatter_route(RouteSink& sink, const RouteGroup& g, int64_t at) {
  Stop sum = scatter(sink, g);
  sum.result = {Space::kOut, at};
  sink.add(sum);
}

void direct_all_reduce_route(RouteSink& sink, const RouteGroup& g, int lag) {
  Stop sum = scatter(sink, g);
  sum.to = sum.from;
  sum.out_flow = sum.out_call = 1;
  sum.result = sum.own;
  sink.add(sum);
  for (int i = 1; i < g.size(); ++i) {
    Stop back = stored(g.slice(g.from(i)), g.all.from(i), 1, i - 1);
    back.call = 1;
    back.start = lag;
    sink.add(back);
  }
}

void direct_all_gather_route(RouteSink& sink, const RouteGroup& g) {
  sink.add({.slice = g.mine(), .to = g.all, .own = {Space::kMine, 0}, .result = {Space::kWhole, g.mine().first}});
  for (int i = 1; i < g.size(); ++i) sink.add(stored(g.slice(g.from(i)), g.all.from(i), 0, i - 1));
}

void column_reduce_scatter_route(RouteSink& sink, const RouteGroup& g, int64_t chunk, bool in_place) {
  int64_t tick = 0, at = 0;
  for (int i = 1; i <= g.size(); ++i) {
    const Slice slice = g.slice(g.to(i));
    const Spot own{Space::kWhole, in_place ? slice.first : at};
    if (i < g.size()) {
      sink.add({.slice = slice, .to = g.one(g.to(i)), .start = tick, .own = own});
    } else {
      sink.add({.kind = StopKind::kAdd, .slice = slice, .from = g.all, .own = own, .result = {Space::kOut, 0}});
    }
    tick += pieces_of(slice.count, chunk);
    at += slice.count;
  }
}

void two_level_all_gather_route(RouteSink& sink, const Circle& node, const Circle& column,
                                std::span<const int64_t> bounds) {
  const RouteGroup of_all(Circle::all(static_cast<int>(bounds.size()) - 1, node.member(node.at)), bounds);
  const Slice mine = of_all.mine();
  sink.add(
      {.slice = mine, .to = column, .also = node, .own = {Space::kMine, 0}, .result = {Space::kWhole, mine.first}});
  int place = 0;
  for (int j = 0; j < column.size; ++j) {
    if (j == column.at) continue;
    Stop handed_on = stored(of_all.slice(column.member(j)), column.member(j), 0, place++);
    handed_on.to = node;
    handed_on.out_flow = 1;
    sink.add(handed_on);
  }
  int far = 0;
  for (int l = 0; l < node.size; ++l) {
    if (l == node.at) continue;
    const int peer = node.member(l);
    sink.add(stored(of_all.slice(peer), peer, 0, place++));
    for (int j = 0; j < column.size; ++j) {
      if (j == column.at) continue;
      Stop passed = stored(of_all.slice(column.member(j) - node.at + l), peer, 1, far++);
      passed.packer = column.member(j) - node.at + l;
      sink.add(passed);
    }
  }
}

void ring_reduce_scatter_route(RouteSink& sink, const RouteGroup& g, int64_t most, bool in_place) {
  const int n = g.size(), next = g.to(1), previous = g.from(1);
  if (n == 1) return;
  const Slice first = g.slice(previous);
  sink.add({.slice = first, .to = Circle::one(next), .own = {Space::kWhole, first.first}});
  for (int step = 1; step < n; ++step) {
    const int owner = (g.me() - step - 1 + 2 * n) % n;
    const Slice slice = g.slice(owner);
    Stop stop{.kind = StopKind::kAdd,
              .slice = slice,
              .from = Circle::one(previous, 1),
              .call = step == 1 ? 0 : 1,
              .out_call = 1,
              .start = (step - 1) * most,
              .own = {Space::kWhole, slice.first}};
    if (owner == g.me()) {
      stop.result = {Space::kOut, 0};
    } else {
      stop.to = Circle::one(next);
      if (in_place) stop.result = stop.own;
    }
    sink.add(stop);
  }
}

void ring_all_gather_route(RouteSink& sink, const RouteGroup& g, int64_t most) {
  const int n = g.size(), next = g.to(1), previous = g.from(1);
  if (n == 1) return;
  const Slice mine = g.mine();
  sink.add({.slice = mine, .to = Circle::one(next), .own = {Space::kMine, 0}, .result = {Space::kWhole, mine.first}});
  for (int step = 1; step < n; ++step) {
    const int owner = (g.me() - step + n) % n;
    const Slice slice = g.slice(owner);
    sink.add({.kind = StopKind::kStore,
              .slice = slice,
              .from = Circle::one(previous),
              .to = step < n - 1 ? Circle::one(next) : Circle(),
              .start = (step - 1) * most,
              .packer = owner,
              .result = {Space::kWhole, slice.first}});
  }
}

void all_to_all_route(RouteSink& sink, const RouteGroup& from, const RouteGroup& to, bool keyed) {
  for (int i = 1; i < from.size(); ++i) {
    const Slice part = from.slice(from.to(i));
    sink.add({.slice = {keyed ? part.first : 0, part.count},
              .to = from.one(from.to(i)),
              .place = i - 1,
              .own = {Space::kWhole, part.first}});
  }
  for (int i = 1; i < from.size(); ++i) {
    const Slice part = to.slice(to.from(i));
    sink.add({.kind = StopKind::kStore,
              .slice = {keyed ? from.mine().first : 0, part.count},
              .from = to.one(to.from(i)),
              .place = i - 1,
              .result = {Space::kMine, part.first}});
  }
}

void hop_route(RouteSink& sink, int to, int64_t sends, int from, int64_t receives, int packer) {
  if (sends > 0) sink.add({.slice = {0, sends}, .to = Circle::one(to), .own = {Space::kWhole, 0}});
  if (receives == 0) return;
  sink.add({.kind = StopKind::kStore,
            .slice = {0, receives},
            .from = Circle::one(from),
            .packer = packer,
            .result = {Space::kMine, 0}});
}

void tree_broadcast_route(RouteSink& sink, int n, int me, int root, int64_t count) {
  const int place = (me - root + n) % n;  // in a tree with the root at 0: parents differ in their lowest set bit
  int span = 1;
  while (span < n && (place & span) == 0) span *= 2;
  span /= 2;
  while (span > 0 && place + span >= n) span /= 2;
  Stop stop{.slice = {0, count}, .own = {Space::kWhole, 0}};
  if (place > 0) {
    stop.kind = StopKind::kStore;
    stop.from = Circle::one(((place & (place - 1)) + root) % n);
    stop.result = stop.own;
  }
  if (span > 0) {
    stop.to = {.base = place + root, .stride = n, .span = span};
    for (int step = span; step > 0; step /= 2) ++stop.to.size;
  }
  sink.add(stop);
}

void message_route(RouteSink& sink, int peer, bool is_send, int64_t count) {
  const Spot data{Space::kWhole, 0};
  if (is_send) {
    sink.add({.slice = {0, count}, .to = Circle::one(peer), .own = data});
  } else {
    sink.add({.kind = StopKind::kStore, .slice = {0, count}, .from = Circle::one(peer), .result = data});
  }
}

void message_parts_route(RouteSink& sink, int peer, const RouteGroup& parts) {
  const auto part = [&](int from, int place) {
    const Slice slice = parts.slice(place);
    return Stop{.kind = StopKind::kStore,
                .slice = {0, slice.count},
                .from = Circle::one(from),
                .result = {Space::kWhole, slice.first}};
  };
  Stop mine = part(peer, parts.me());
  mine.to = parts.all;
  mine.out_flow = 1;
  sink.add(mine);
  for (int i = 1; i < parts.size(); ++i) {
    Stop other = part(parts.all.from(i), parts.from(i));
    other.flow = other.call = 1;
    other.place = i - 1;
    other.packer = parts.from(i);
    sink.add(other);
  }
}

// --- verbs -----------------------------------------------------------------------------------------------------------

namespace {

// Of what is summed or passed on. second: compression of the sums.
RouteRun summing(const GroupLane& lane, int64_t stops, const CodedCall& call, DType dtype,
                 const Coder* second = nullptr) {
  return {lane, stops, call, dtype,
          call.in_place ? lane.chunk_elements(dtype) : coded_chunk_elements(*lane.tuning, dtype, call.coder, second)};
}

// Of what only travels, uncoded in pieces of so many elements.
RouteRun moving(const GroupLane& lane, int64_t stops, const CodedCall& call, DType dtype, int64_t piece) {
  RouteRun run(lane, stops, call, dtype, call.in_place ? piece : coded_chunk_elements(*lane.tuning, dtype, call.coder));
  if (call.in_place) run.flows[0].ahead = kMostAhead;
  return run;
}

// A slice leaves in full before the next but one is begun: its payloads have places of their own. Returns the pieces of
// the longest.
int64_t go_around(RouteRun& run, const RouteGroup& group) {
  int64_t most = 1;
  for (int r = 0; r < group.size(); ++r) most = std::max(most, pieces_of(group.slice(r).count, run.chunk));
  run.flows[0] = {.ahead = run.flows[0].ahead, .exchanges = 2, .group = most, .own_ahead = most, .shift = most};
  return most;
}

Task convert_alone(GroupLane, View from, View to) {
  convert(from, to);
  co_return;
}

// A group of one: the sum is the contribution.
Task reduce_alone(GroupLane, View whole, View out, bool accumulate) {
  const void* source = whole.data;
  if (whole.count() > 0 && (accumulate || out.data != source || out.dtype != whole.dtype))
    combine_in_rank_order(ReduceKind::kSum, whole.dtype, &source, 1, out.dtype, out.data, whole.count(), accumulate);
  co_return;
}

// Bounds are read at once.
Task ring_reduce_scatter(const GroupLane& lane, const CodedCall& call, View whole, const Bounds& bounds, View out,
                         bool accumulate) {
  RouteRun run = summing(lane, lane.size(), call, whole.dtype);
  run.dtypes[1] = sum_dtype(call.coder, whole.dtype);
  run.whole = whole;
  run.out = out;
  run.accumulate = accumulate;
  const RouteGroup group = group_of(lane, bounds);
  ring_reduce_scatter_route(run, group, go_around(run, group), call.in_place);
  return run_route(lane, std::move(run));
}

}  // namespace

Task direct_reduce_scatter(const GroupLane& lane, const CodedCall& call, const RouteGroup& group, View whole, View out,
                           int64_t at, bool accumulate) {
  RouteRun run = summing(lane, group.size(), call, whole.dtype);
  run.whole = whole;
  run.out = out;
  run.accumulate = accumulate;
  direct_reduce_scatter_route(run, group, at);
  return run_route(lane, std::move(run));
}

Task route_all_gather(const GroupLane& lane, const CodedCall& call, const RouteGroup& group, View mine, View whole,
                      Algorithm algorithm, SendQueue* queue, bool inside_node) {
  // What is neither coded nor lossy travels in the replica's type: it is rounded before, into my range of `whole`.
  const View range = part_of(whole, group.mine());
  const bool rounded = mine.dtype != whole.dtype && (call.coder == nullptr || call.coder->traits().lossless);
  const View source = rounded ? range : mine;
  RouteRun run = algorithm == Algorithm::kRing
                     ? summing(lane, group.size(), call, source.dtype)
                     : moving(lane, group.size(), call, source.dtype, lane.piece_elements(source.dtype, inside_node));
  if (rounded) run.rounded_from = mine, run.rounded_to = range;
  run.mine = source;
  run.whole = whole;
  run.queue = queue;
  run.logical_dtype = whole.dtype;
  if (algorithm == Algorithm::kTwoLevel) {
    const GridPlace g(lane);
    run.flow_count = 2;
    run.flows[1].exchanges = 1;
    // One order for what comes under one tag: my piece k, then the pieces k that are passed on.
    if (is_framed(call.coder)) run.flows[0].own_ahead = 0;
    two_level_all_gather_route(run, g.inside(), g.across(), group.bounds);
  } else if (algorithm == Algorithm::kRing) {
    ring_all_gather_route(run, group, go_around(run, group));
  } else {
    direct_all_gather_route(run, group);
  }
  return run_route(lane, std::move(run));
}

Task direct_all_reduce(const GroupLane& lane, const CodedCall& call, const CodedCall& back, const RouteGroup& group,
                       View data) {
  RouteRun run = summing(lane, 2 * group.size(), call, data.dtype, back.coder);
  run.calls[1] = back;
  run.dtypes[1] = sum_dtype(back.coder, data.dtype);
  run.whole = data;
  run.flow_count = 2;
  const bool plain = back.coder == nullptr;
  if (plain) run.flows[1].ahead = 1;  // in place: only what has been sent may be overwritten
  direct_all_reduce_route(run, group, plain ? 2 : 1);
  return run_route(lane, std::move(run));
}

// --- compressed verbs -------------------------------------------------------------------------------------------

Task coded_reduce_scatter(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate,
                          Algorithm way, CodedCall between) {
  if (lane.size() == 1) return reduce_alone(lane, whole, out, accumulate);
  if (way == Algorithm::kTwoLevel)
    return two_level_reduce_scatter(lane, call, between, whole, std::move(bounds), out, accumulate);
  if (way == Algorithm::kRing) return ring_reduce_scatter(lane, call, whole, bounds, out, accumulate);
  return direct_reduce_scatter(lane, call, group_of(lane, bounds), whole, out, 0, accumulate);
}

Task coded_all_gather(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds, Algorithm way) {
  if (lane.size() == 1) return convert_alone(lane, mine, whole);
  return route_all_gather(lane, call, group_of(lane, bounds), mine, whole, way,
                          way == Algorithm::kDirect ? lane.gathers : nullptr);
}

namespace {

// A scatter and a gather, one behind the other: rings, two levels, and framed payloads on either way. The gather takes
// no turn among all-gathers: it would be taken here, behind the scatter, and ranks whose scatters end in another order
// would wait for each other for ever.
Task all_reduce_in_turn(GroupLane lane, CodedCall call, CodedCall between, CodedCall back, View data, Algorithm way) {
  const bool levels = way == Algorithm::kTwoLevel;
  const Bounds bounds = part_bounds(lane.pool(), data.count(), lane.size(),
                                    common_unit(call.coder, back.coder, levels ? between.coder : nullptr));
  const RouteGroup group = group_of(lane, bounds);
  const Slice own = group.mine();
  const DType sum_type = sum_dtype(back.coder, data.dtype);
  const VerbSpace space(lane, call.in_place ? 0 : own.count * static_cast<int64_t>(size_of(sum_type)));
  const View sum = call.in_place ? part_of(data, own) : View(space.data(), sum_type, {own.count});
  Task reduce = coded_reduce_scatter(lane, call, data, Bounds(lane.pool(), group.bounds), sum, false, way, between);
  co_await reduce;
  GroupLane way_back = lane;
  if (call.in_place) way_back.tag = lane.tag + 1;
  Task spread = route_all_gather(way_back, back, group, sum, data, way);
  co_await spread;
}

}  // namespace

Task coded_all_reduce(GroupLane lane, CodedCall scatter, CodedCall gather, View data, Algorithm way,
                      CodedCall between) {
  if (lane.size() == 1) return nothing(lane);
  if (way != Algorithm::kDirect || is_framed(scatter.coder) || is_framed(gather.coder))
    return all_reduce_in_turn(lane, scatter, between, gather, data, way);
  // Both have payloads of known length: the sums of piece k go back while piece k + 1 arrives.
  const Bounds bounds = part_bounds(lane.pool(), data.count(), lane.size(), common_unit(scatter.coder, gather.coder));
  return direct_all_reduce(lane, scatter, gather, group_of(lane, bounds), data);
}

namespace {

Task whole_message(const GroupLane& lane, const CodedCall& call, View data, int peer, bool is_send) {
  RouteRun run = moving(lane, 1, call, data.dtype, lane.message_elements(data.dtype));
  run.whole = data;
  run.message = true;
  if (is_send) run.queue = call.packing;
  // A message has one tag: lengths and payloads take turns on it.
  if (!is_send && is_framed(call.coder)) run.flows[0].ahead = 1;
  message_route(run, peer, is_send, data.count());
  return run_route(lane, std::move(run));
}

}  // namespace

Task coded_send(GroupLane lane, CodedCall call, View data, int peer) {
  return whole_message(lane, call, data, peer, true);
}

Task coded_receive(GroupLane lane, CodedCall call, View data, int peer) {
  return whole_message(lane, call, data, peer, false);
}

Task coded_pack(GroupLane lane, CodedCall call, View data, Payloads* kept) {
  RouteRun run = moving(lane, 1, call, data.dtype, lane.piece_elements(data.dtype));
  run.whole = data;
  run.kept = kept;
  const Spot own{Space::kWhole, 0};
  run.add({.slice = {0, data.count()}, .own = own, .result = own});
  return run_route(lane, std::move(run));
}

Task coded_hop(const GroupLane& lane, const CodedCall& call, View from, int to_member, View to, int from_member,
               int packer, const Payloads* passed, Payloads* kept) {
  RouteRun run = moving(lane, 2, call, from.dtype, lane.piece_elements(from.dtype));
  run.whole = from;
  run.mine = to;
  run.passed = passed;
  run.kept = kept;
  hop_route(run, to_member, from.count(), from_member, to.count(), packer);
  return run_route(lane, std::move(run));
}

Task coded_all_to_all(const GroupLane& lane, const CodedCall& call, View from, const Bounds& from_bounds, View to,
                      const Bounds& to_bounds) {
  RouteRun run = moving(lane, 2 * lane.size(), call, from.dtype, lane.piece_elements(from.dtype));
  run.whole = from;
  run.mine = to;
  run.kept_from = part_of(from, slice_of(from_bounds, lane.me));
  run.kept_to = part_of(to, slice_of(to_bounds, lane.me));
  // Where a part starts is the sender's knowledge alone, so pieces are numbered within their part; with a state, which
  // has a place for every element, by the place in `from`, which is then the same on all ranks.
  all_to_all_route(run, group_of(lane, from_bounds), group_of(lane, to_bounds), call.state != nullptr);
  return run_route(lane, std::move(run));
}

namespace {

// In the place that the lane has among its group's operations.
Task in_place_of(GroupLane, Task operation) {
  co_await operation;
}

Task message_parts(const GroupLane& lane, const CodedCall& call, const GroupLane& parts, View data,
                   std::span<const int64_t> bounds, std::span<const Msg> messages, int peer) {
  RouteRun run = moving(lane, parts.size(), call, data.dtype, lane.message_elements(data.dtype));
  run.whole = data;
  run.message = true;
  run.flow_count = 2;
  run.beyond.emplace(parts);
  if (is_framed(call.coder)) run.flows[0].ahead = 1;
  if (call.coder != nullptr) {
    run.messages.emplace(lane.pool(), messages);
    run.logical_to = parts.counters;
  }
  message_parts_route(run, peer, RouteGroup(parts.me, bounds));
  return run_route(lane, std::move(run));
}

}  // namespace

Task coded_receive_parts(GroupLane lane, CodedCall call, GroupLane parts, View data, std::span<const int64_t> bounds,
                         std::span<const Msg> messages, int peer) {
  if (lane.rehearsal != nullptr) return message_parts(lane, call, parts, data, bounds, messages, peer);
  GroupLane inner = parts;
  inner.place = SequencePlace();  // the outer task's
  return in_place_of(parts, message_parts(lane, call, inner, data, bounds, messages, peer));
}

}  // namespace thinwire
