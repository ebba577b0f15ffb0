// Writes the routes and exchanges of a rehearsed operation (rehearsal.h) as instructions of a tape, in the order of the
// executor of routes (route_run.cpp: run_route): the same ticks, windows and waits, with the seconds that packing,
// adding and handing over messages take on this machine.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/run/plan/step_tape.h"

namespace thinwire {

class RouteRun;
class RoundCodec;
class Coder;
struct GroupLane;
struct SendQueue;
struct Stop;

class RouteCode {
 public:
  // most_pieces: per slice, as in record_tape.
  RouteCode(Tape& tape, const Cluster& cluster, int most_pieces)
      : tape_(tape), cluster_(cluster), most_pieces_(most_pieces) {}
  // Call it first. The more bytes the rank holds, the fewer of its tensors are in cache.
  void set_rank_bytes(double bytes) { from_memory_ = cluster_.machine.from_memory.of_rank(bytes); }
  void add_route(const GroupLane& lane, const RouteRun& run);
  void add_exchange(const GroupLane& lane, std::span<const int> to, std::span<const int> from, int64_t bytes);
  void add_rounds(const RoundCodec& codec, int64_t count);
  // All that was added since the last call is one operation of this site.
  void end_operation(Site site);

 private:
  friend class RouteCompiler;
  // extra_from_memory: seconds more where the tensor comes from memory (FromMemory).
  void work(double seconds, double extra_from_memory = 0.0);
  // Add an instruction; send() and await() also the work that the messages take. Legs and sends are empty afterwards.
  // send() and post() return the number of their instruction; post() returns -1 for no legs.
  int send(std::vector<TapeLeg>& legs);
  int post(std::vector<TapeLeg>& legs);
  void await(int post);
  void await_sent(std::vector<int>& sends);
  void put(TapeCode code, std::vector<TapeLeg>& legs);
  // Seconds of work for the messages of a leg.
  double handling(const TapeLeg& leg, bool is_send) const;

  Tape& tape_;
  const Cluster& cluster_;
  FromMemory from_memory_;
  int most_pieces_;
  int route_ = 0;  // TapeInstruction::route and cyclic of what is added now
  bool cyclic_ = false;
  size_t ended_ = 0;                                          // instructions of operations that have ended
  std::vector<std::pair<size_t, double>> extra_from_memory_;  // of the others: number of a kWork, extra seconds
  std::map<std::vector<TapeLeg>, int> leg_places_;            // where the same legs begin in Tape::legs
  std::map<const SendQueue*, int> queues_;
  std::map<int, int> routes_;                           // by communicator
  std::map<std::tuple<int, int, bool>, int> messages_;  // by communicator, peer, direction
};

}  // namespace thinwire
