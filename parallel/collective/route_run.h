// Runs a route: one coroutine for every algorithm, with coders or without.
//
// Tick by tick: own slices leave ahead of their tick, packed while earlier pieces travel; receives are posted ahead of
// theirs; what is due is added or stored, and goes on to whoever is next. A buffer is used again only when what left
// from it, or was passed on from it, has been sent. What nobody codes is sent from, and stored in, its own place.
#pragma once

#include "parallel/collective/coded_chunks.h"
#include "parallel/collective/route.h"

namespace thinwire {

// The window of a flow.
struct RouteFlow {
  int ahead = kInFlight;      // receives posted ahead, at most kMostAhead
  int exchanges = kInFlight;  // sends: so many groups of `group` ticks may be under way
  int64_t group = 1;
  int64_t own_ahead = 2;  // own slices leave so many ticks ahead
  int64_t shift = 0;      // what is passed on at tick t leaves as number t + shift
};

// What run_route() needs beside the lane. Made by a verb, filled by a builder of route.h.
class RouteRun final : public RouteSink {
 public:
  // stops: at most. chunk: elements of a piece.
  RouteRun(const GroupLane& lane, int64_t stops, int64_t chunk) : chunk(chunk), stops_(lane.pool(), stops) {}
  void add(const Stop& stop) override {
    TW_CHECK(count_ < stops_.count());
    sent_elements_ += stop.to.peers() * stop.slice.count;
    codings_ = std::max({codings_, stop.coding + 1, stop.out_coding + 1});
    passes_on_ |= stop.from.peers() > 0 && stop.to.peers() > 0;
    stops_[count_++] = stop;
  }
  std::span<const Stop> stops() const { return {stops_.data(), static_cast<size_t>(count_)}; }
  int64_t sent_elements() const { return sent_elements_; }
  int codings() const { return codings_; }
  bool passes_on() const { return passes_on_; }

  CodedCall calls[2];  // by compression
  DType dtypes[2] = {DType::f32, DType::f32};
  RouteFlow flows[2];
  int flow_count = 1;
  int64_t chunk;
  View whole, out, mine;
  View kept_from, kept_to;  // copied on the way
  bool accumulate = false;  // into `out`
  bool message = false;     // one tag for everything
  ReduceKind kind = ReduceKind::kSum;
  Seat seat;
  TurnQueue* queue = nullptr;          // whose turn it is to send; nullptr: no order
  WireCounters* logical_to = nullptr;  // gets the uncoded bytes of the route; nullptr: counted as sent
  DType logical_dtype = DType::f32;

 private:
  Scratch<Stop> stops_;
  int64_t count_ = 0, sent_elements_ = 0;
  int codings_ = 1;
  bool passes_on_ = false;
};

Task run_route(GroupLane lane, RouteRun run);

inline RouteGroup group_of(const GroupLane& lane, const Bounds& bounds) {
  return {lane.me, {bounds.data(), static_cast<size_t>(lane.size()) + 1}};
}

// The bytes that a route hands to the transport (framed codecs: at most).
class RouteBytes final : public RouteSink {
 public:
  struct Coding {
    const Coder* coder = nullptr;
    DType dtype = DType::f32;
  };
  RouteBytes(const Cut& cut, Coding first, Coding second) : cut_(cut), codings_{first, second} {}
  void add(const Stop& stop) override {
    if (stop.to.peers() == 0) return;
    const Coding& coding = codings_[stop.kind == StopKind::kAdd ? stop.out_coding : stop.coding];
    bytes += stop.to.peers() * slice_bytes(coding.coder, cut_, stop.slice.count, coding.dtype);
  }
  int64_t bytes = 0;

 private:
  Cut cut_;
  Coding codings_[2];
};

}  // namespace thinwire
