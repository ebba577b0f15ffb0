// Turns what a rehearsed operation tells (rehearsal.h) into the instructions of a tape, in the order of the executor of
// routes (route_run.cpp: run_route): the same ticks, windows and waits, with the seconds that packing, adding and
// handing over messages take on this machine.
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
  // most_pieces: of a slice, as in record_tape.
  RouteCode(Tape& tape, const Cluster& cluster, int most_pieces)
      : tape_(tape), cluster_(cluster), most_pieces_(most_pieces) {}
  // Of the rank, before anything is added: how far off its tensors are.
  void rank_holds(double bytes) { from_memory_ = cluster_.machine.from_memory.of_rank(bytes); }
  void add_route(const GroupLane& lane, const RouteRun& run);
  void add_exchange(const GroupLane& lane, std::span<const int> to, std::span<const int> from, int64_t bytes);
  void add_rounds(const RoundCodec& codec, int64_t count);
  // All that was added since the last call is an operation of this site.
  void is_of(Site site);

 private:
  friend class RouteCompiler;
  // from_memory: what it takes longer where the tensor comes from memory (FromMemory).
  void work(double seconds, double from_memory = 0.0);
  // Of messages that this rank sends or has received: the work they take, and for sends the instruction.
  int send(std::vector<TapeLeg>& legs);
  int post(std::vector<TapeLeg>& legs);
  void put(TapeCode code, std::vector<TapeLeg>& legs);
  void await(int post);
  void await_sent(std::vector<int>& sends);
  double handling(const TapeLeg& leg, bool is_send) const;

  Tape& tape_;
  const Cluster& cluster_;
  FromMemory from_memory_;
  int most_pieces_;
  int route_ = 0;  // of what is being told
  bool cyclic_ = false;
  size_t told_ = 0;                                // instructions of operations whose site is known
  std::vector<std::pair<size_t, double>> slower_;  // of the others: kWork, and what it takes longer from memory
  std::map<std::vector<TapeLeg>, int> written_;    // where these legs stand
  std::map<const SendQueue*, int> queues_;
  std::map<int, int> routes_;                           // by communicator
  std::map<std::tuple<int, int, bool>, int> messages_;  // by communicator, peer, direction
};

}  // namespace thinwire
