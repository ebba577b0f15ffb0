// The routes of the algorithms: who sends which slice to whom, and what becomes of it there.
#include <algorithm>

#include "parallel/collective/route.h"

namespace thinwire {
namespace {

// The slices of all others leave for their owners; returns the stop at which mine is added up.
Stop scatter(RouteSink& sink, const RouteGroup& g) {
  const Circle all = Circle::all(g.size(), g.me);
  for (int i = 1; i <= all.peers(); ++i) {
    const int peer = all.to(i);
    const Slice slice = g.slice(peer);
    sink.add({.slice = slice, .to = Circle::one(peer), .place = i - 1, .own = {Space::kWhole, slice.first}});
  }
  const Slice mine = g.slice(g.me);
  return {.kind = StopKind::kAdd, .slice = mine, .from = all, .own = {Space::kWhole, mine.first}};
}

}  // namespace

void direct_reduce_scatter_route(RouteSink& sink, const RouteGroup& g) {
  Stop sum = scatter(sink, g);
  sum.result = {Space::kOut, 0};
  sink.add(sum);
}

void direct_all_reduce_route(RouteSink& sink, const RouteGroup& g, int lag) {
  Stop sum = scatter(sink, g);
  sum.to = sum.from;
  sum.out_flow = sum.out_coding = 1;
  sum.result = sum.own;
  sink.add(sum);
  for (int i = 1; i < g.size(); ++i) {
    const int peer = sum.from.from(i);
    const Slice slice = g.slice(peer);
    sink.add({.kind = StopKind::kStore,
              .slice = slice,
              .from = Circle::one(peer),
              .flow = 1,
              .coding = 1,
              .start = lag,
              .place = i - 1,
              .result = {Space::kWhole, slice.first}});
  }
}

void direct_all_gather_route(RouteSink& sink, const RouteGroup& g) {
  const Circle all = Circle::all(g.size(), g.me);
  const Slice mine = g.slice(g.me);
  sink.add({.slice = mine, .to = all, .own = {Space::kMine, 0}, .result = {Space::kWhole, mine.first}});
  for (int i = 1; i < g.size(); ++i) {
    const int peer = all.from(i);
    const Slice slice = g.slice(peer);
    sink.add({.kind = StopKind::kStore,
              .slice = slice,
              .from = Circle::one(peer),
              .place = i - 1,
              .result = {Space::kWhole, slice.first}});
  }
}

void ring_reduce_scatter_route(RouteSink& sink, const RouteGroup& g, int64_t most, bool in_place) {
  const int n = g.size(), next = (g.me + 1) % n, previous = (g.me + n - 1) % n;
  if (n == 1) return;
  const Slice first = g.slice(previous);
  sink.add({.slice = first, .to = Circle::one(next), .own = {Space::kWhole, first.first}});
  for (int step = 1; step < n; ++step) {
    const int owner = (g.me - step - 1 + 2 * n) % n;
    const Slice slice = g.slice(owner);
    Stop stop{.kind = StopKind::kAdd,
              .slice = slice,
              .from = Circle::one(previous, 1),
              .coding = step == 1 ? 0 : 1,
              .out_coding = 1,
              .start = (step - 1) * most,
              .own = {Space::kWhole, slice.first}};
    if (owner == g.me) {
      stop.result = {Space::kOut, 0};
    } else {
      stop.to = Circle::one(next);
      if (in_place) stop.result = stop.own;
    }
    sink.add(stop);
  }
}

void ring_all_gather_route(RouteSink& sink, const RouteGroup& g, int64_t most) {
  const int n = g.size(), next = (g.me + 1) % n, previous = (g.me + n - 1) % n;
  if (n == 1) return;
  const Slice mine = g.slice(g.me);
  sink.add({.slice = mine, .to = Circle::one(next), .own = {Space::kMine, 0}, .result = {Space::kWhole, mine.first}});
  for (int step = 1; step < n; ++step) {
    const int owner = (g.me - step + n) % n;
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
  const Circle all = Circle::all(from.size(), from.me);
  for (int i = 1; i <= all.peers(); ++i) {
    const Slice part = from.slice(all.to(i));
    sink.add({.slice = {keyed ? part.first : 0, part.count},
              .to = Circle::one(all.to(i)),
              .place = i - 1,
              .own = {Space::kWhole, part.first}});
  }
  for (int i = 1; i <= all.peers(); ++i) {
    const Slice part = to.slice(all.from(i));
    sink.add({.kind = StopKind::kStore,
              .slice = {keyed ? from.slice(from.me).first : 0, part.count},
              .from = Circle::one(all.from(i)),
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
