// Routes: what one member of a group sends, receives, adds and stores in a collective, as plain data.
//
// A route is a list of stops. A stop is one slice of the message at one member: where it comes from, whether it is
// added to what is here or stored, and who gets it next. Slices travel in pieces; piece k of a stop is due at tick
// start + k. Executors (route_run.h) go through the ticks with bounded windows; the bytes on the wire are the sum over
// the stops. The builders know nothing of memory, transports or coders.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace thinwire {

// Elements [first, first + count) of a message.
struct Slice {
  int64_t first = 0, count = 0;
};

// Other members of the group, seen from place `at` of a circle of `size` places: member p is base + p * stride.
// span > 0: the children in a binomial tree instead; child i is base + (span >> (i - 1)), modulo `stride`.
struct Circle {
  int base = 0, stride = 1, size = 1, at = 0, span = 0;
  int peers() const { return size - 1; }
  int member(int place) const { return base + place * stride; }
  // Peer i of 1 .. peers(): in the order of sends, and of receives.
  int to(int i) const { return span > 0 ? (base + (span >> (i - 1))) % stride : member((at + i) % size); }
  int from(int i) const { return member((at + size - i) % size); }
  static Circle all(int n, int me) { return {0, 1, n, me}; }
  // own: the place of what is here in a sum of the two, 0 or 1.
  static Circle one(int peer, int own = 0) { return {peer, 0, 2, own}; }
};

// Memory of the operation that a slice lies in, from element `at` on.
enum class Space : uint8_t { kNone, kWhole, kOut, kMine };
struct Spot {
  Space space = Space::kNone;
  int64_t at = 0;
};

enum class StopKind : uint8_t {
  kSend,   // `own` goes to `to`, ahead of its tick; `result`, if any, gets what the receivers decode
  kAdd,    // the shares of `from` and `own`, in the order of places: the sum goes to `result` and on to `to`
  kStore,  // what `from` sent goes to `result`, and to `to` as it came
};

struct Stop {
  StopKind kind = StopKind::kSend;
  Slice slice;                 // as coders number the message
  Circle from, to, also;       // of size 1: nobody. also: gets what `to` gets, behind it
  int flow = 0, out_flow = 0;  // received in, sent in: a flow has its own window and tag
  int call = 0, out_call = 0;
  int64_t start = 0;  // tick of piece 0
  int place = 0;      // of the first buffer of a piece in its flow
  int packer = -1;    // kStore: who packed it, where that is not who sent it
  Spot own, result;
  int receivers() const { return to.peers() + also.peers(); }
};

class RouteSink {
 public:
  virtual void add(const Stop& stop) = 0;

 protected:
  ~RouteSink() = default;
};

// Who takes part, and what is whose: the slice of the member at place p is [bounds[i], bounds[i + 1]), i being
// first + p * step. A part of a larger group keeps that group's members and bounds.
struct RouteGroup {
  Circle all;  // seen from this member
  std::span<const int64_t> bounds;
  int first = 0, step = 1;
  RouteGroup(const Circle& all, std::span<const int64_t> bounds, int first = 0, int step = 1)
      : all(all), bounds(bounds), first(first), step(step) {}
  RouteGroup(int me, std::span<const int64_t> bounds)
      : RouteGroup(Circle::all(static_cast<int>(bounds.size()) - 1, me), bounds) {}
  int size() const { return all.size; }
  int me() const { return all.at; }
  Slice slice(int place) const {
    const auto i = static_cast<size_t>(first + place * step);
    return {bounds[i], bounds[i + 1] - bounds[i]};
  }
  Slice mine() const { return slice(me()); }
  // Place of peer i of 1 .. size() - 1, in the order of sends and of receives.
  int to(int i) const { return (me() + i) % size(); }
  int from(int i) const { return (me() + size() - i) % size(); }
  Circle one(int place) const { return Circle::one(all.member(place)); }
};

inline constexpr int64_t kUncut = std::numeric_limits<int64_t>::max();  // as a piece: slices travel whole
inline int64_t pieces_of(int64_t count, int64_t chunk) {
  return count == 0 ? 0 : (count - 1) / chunk + 1;
}

// Calls: 0 contributions and gathers, 1 sums on their way.
// Flow 0: every slice goes to its owner, who adds in rank order. The sum ends in kOut, from `at` on.
void direct_reduce_scatter_route(RouteSink& sink, const RouteGroup& group, int64_t at = 0);
// Sums go back to all in flow 1 (call 1), `lag` ticks behind. In place.
void direct_all_reduce_route(RouteSink& sink, const RouteGroup& group, int lag);
// Everybody's slice goes to all. From kMine to kWhole.
void direct_all_gather_route(RouteSink& sink, const RouteGroup& group);
// Partial sums go once around: slice r starts at member r + 1 and ends at r. most: pieces of the longest slice.
// in_place: partial sums overwrite kWhole. The first hop has call 0, later ones have call 1.
void ring_reduce_scatter_route(RouteSink& sink, const RouteGroup& group, int64_t most, bool in_place);
void ring_all_gather_route(RouteSink& sink, const RouteGroup& group, int64_t most);
// Between nodes: all slices are node sums, made one behind the other while those before them travel. They leave whole,
// slice by slice, in ticks of their own; `chunk`: elements of a piece. in_place: they lie in kWhole at their slices;
// else behind each other, the next node's first and mine last. The sum ends in kOut.
void column_reduce_scatter_route(RouteSink& sink, const RouteGroup& group, int64_t chunk, bool in_place);
// Everybody's slice goes to its column (the members at one place of each node) and to its node; what comes by the
// column (flow 0) goes on to the node as it is, in flow 1. From kMine to kWhole. bounds: of all members.
void two_level_all_gather_route(RouteSink& sink, const Circle& node, const Circle& column,
                                std::span<const int64_t> bounds);
// from: of what I send (kWhole), to: of what I receive (kMine). keyed: coders number pieces by the place in `from`.
void all_to_all_route(RouteSink& sink, const RouteGroup& from, const RouteGroup& to, bool keyed);
// All of kWhole, `sends` elements, goes to member `to`; what member `from` sends, `receives` elements that `packer` has
// packed, lands in kMine. Of none: nobody sends, or receives.
void hop_route(RouteSink& sink, int to, int64_t sends, int from, int64_t receives, int packer);
// Binomial tree; kWhole.
void tree_broadcast_route(RouteSink& sink, int n, int me, int root, int64_t count);
void message_route(RouteSink& sink, int peer, bool is_send, int64_t count);  // kWhole

}  // namespace thinwire
