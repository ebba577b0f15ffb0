// The routes of the algorithms: who sends which slice to whom, and what becomes of it there.
#include <algorithm>

#include "parallel/collective/route.h"

namespace thinwire {
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

}  // namespace thinwire
