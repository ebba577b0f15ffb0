// Runs a route: one coroutine for every algorithm, with coders or without.
//
// Tick by tick: own slices leave ahead of their tick, packed while earlier pieces travel; receives are posted ahead of
// theirs; what is due is added or stored, and sent to the next member. A buffer is used again only once all that was
// sent or passed on from it has left. Uncoded slices are sent from, and stored in, the caller's memory.
#pragma once

#include <functional>
#include <optional>

#include "parallel/collective/pieces.h"
#include "parallel/collective/route.h"

namespace thinwire {

inline constexpr int kInFlight = 3;   // pieces under way per peer: one travels, one is packed, one is absorbed
inline constexpr int kMostAhead = 4;  // receives posted ahead: a piece that comes before its own is copied once more

// The window of a flow.
struct RouteFlow {
  int ahead = kInFlight;      // receives posted ahead; above kMostAhead several are awaited together
  int exchanges = kInFlight;  // sends: so many groups of `group` ticks may be under way, at most kInFlight
  int64_t group = 1;
  int64_t own_ahead = 2;  // own slices leave so many ticks ahead
  int64_t shift = 0;      // what is passed on at tick t leaves as number t + shift
};

// What run_route() needs beside the lane. Made by a verb, filled by a builder of route.h when calls and types are set.
// In a rehearsal (collectives.h) the bytes of the route are added up instead.
class RouteRun final : public RouteSink {
 public:
  // stops: at most. chunk: elements of a piece.
  RouteRun(const GroupLane& lane, int64_t stops, const CodedCall& call, DType dtype, int64_t chunk);
  void add(const Stop& stop) override;
  std::span<const Stop> stops() const { return {stops_.data(), static_cast<size_t>(count_)}; }
  int64_t sent_elements() const { return sent_elements_; }
  int call_count() const { return call_count_; }
  bool passes_on() const { return passes_on_; }
  // That a stop's slice belongs to.
  const Msg& message_of(const Stop& stop, int call) const {
    return messages && stop.packer >= 0 ? (*messages)[stop.packer] : calls[call].msg;
  }
  // `count` elements of the memory of a slice, from its element `first` on.
  View part(const Spot& spot, int64_t first, int64_t count) const;
  // What is here already, where nobody compresses it: copied while others send.
  void keep_own() const;

  CodedCall calls[2];  // by Stop::call
  DType dtypes[2];
  RouteFlow flows[2];
  int flow_count = 1;
  int64_t chunk;
  View whole, out, mine;
  View rounded_from, rounded_to;  // converted before anything leaves
  View kept_from, kept_to;        // copied on the way
  bool accumulate = false;        // into `out`
  bool message = false;           // lengths and payloads of flow 0 share one tag
  // The group of flow 1, where that is another one. Calls 1 and flow 1 number its members.
  std::optional<GroupLane> beyond;
  std::optional<Scratch<Msg>> messages;  // by Stop::packer, where every part is a message of its own; else calls'
  // Called for ticks 0 .. own_ahead (or for kUncut: all) until it returns an empty task. What it returns runs before
  // the own slices of that tick leave.
  std::function<Task(int64_t tick)> before;
  SendQueue* queue = nullptr;  // own slices leave in this run's turn; nullptr: at once
  // For routes of one coded slice each way. passed: payloads that were packed before, to be sent. kept: gets the
  // payloads that are received, or, where none are, packed. Both outlive the run.
  const Payloads* passed = nullptr;
  Payloads* kept = nullptr;
  WireCounters* logical_to;  // gets the route's bytes as if uncoded; nullptr: they are counted as they are sent
  DType logical_dtype;

 private:
  const GroupLane* rehearsed_;  // of the caller, while stops are added; nullptr: no rehearsal
  Scratch<Stop> stops_;
  int64_t count_ = 0, sent_elements_ = 0;
  int call_count_ = 1;
  bool passes_on_ = false;
};

// The blocks of the pool that a run works in, for payloads and sums that have no place of their own.
struct RouteSpace {
  explicit RouteSpace(const RouteRun& run);
  // Of the payloads of a flow one way.
  struct Way {
    int places = 1;
    size_t longest = 0;
    int64_t slots = 0;     // of `places` payloads each
    int64_t payloads = 0;  // bytes of all that come to lie here: less than bytes() where a window is never full
    bool framed = false;
    size_t stride() const { return (longest + 63) / 64 * 64; }
    int64_t bytes() const { return static_cast<int64_t>(stride()) * places * slots; }
  };
  Way in[2], out[2];
  int64_t partial = 0;  // bytes of a sum that is packed again
  int shares = 0;       // most that one sum takes
  int64_t ticks = 0, own_ticks = 0;
};

Task run_route(GroupLane lane, RouteRun run);

// Counts the bytes that an operation sends and, apart, `logical_bytes`, what they would be uncoded: takes the place of
// the lane's counters, and adds both up when the operation ends. Declared before anything that sends.
class CounterScope {
 public:
  CounterScope(GroupLane& lane, WireCounters* logical_to, int64_t logical_bytes);
  CounterScope(const CounterScope&) = delete;
  CounterScope& operator=(const CounterScope&) = delete;
  ~CounterScope();

 private:
  WireCounters own_, *wire_to_, *logical_to_;
  int64_t logical_bytes_;
};

inline RouteGroup group_of(const GroupLane& lane, const Bounds& bounds) {
  return {lane.me, {bounds.data(), static_cast<size_t>(lane.size()) + 1}};
}

// Verbs as routes, with or without compression (coded.h), among a part of the group. Bounds are read at once.
//
// Each slice goes straight to its owner, who sums it piece by piece in rank order, to `out` from element `at` on.
Task direct_reduce_scatter(const GroupLane& lane, const CodedCall& call, const RouteGroup& group, View whole, View out,
                           int64_t at, bool accumulate);
// The owner sends each piece back to all while the next one arrives. back: not framed, nor `call`.
Task direct_all_reduce(const GroupLane& lane, const CodedCall& call, const CodedCall& back, const RouteGroup& group,
                       View data);
// The owner packs its slice once, and absorbs that payload as all others do. mine: my range of `whole`, or memory
// outside it. queue: gathers that share one send in the order of issue; only for operations that come here before
// their first suspension. kTwoLevel: for the whole group, and coded.
Task route_all_gather(const GroupLane& lane, const CodedCall& call, const RouteGroup& group, View mine, View whole,
                      Algorithm algorithm, SendQueue* queue = nullptr, bool inside_node = false);

}  // namespace thinwire
