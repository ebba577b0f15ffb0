// Turns what a rehearsed operation tells (rehearsal.h) into the instructions of a tape, in the order of the executor of
// routes (route_run.cpp: run_route): the same ticks, windows and waits, with the seconds that packing, adding and
// handing over messages take on this machine.
#pragma once

#include <map>
#include <span>
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
  RouteCode(Tape& tape, const Cluster& cluster) : tape_(tape), cluster_(cluster) {}
  void add_route(const GroupLane& lane, const RouteRun& run);
  void add_exchange(const GroupLane& lane, std::span<const int> to, std::span<const int> from, int64_t bytes);
  void add_rounds(const RoundCodec& codec, int64_t count);

 private:
  friend class RouteCompiler;
  void work(double seconds);
  // Of messages that this rank sends or has received: the work they take, and for sends the instruction.
  int send(std::vector<TapeLeg>& legs);
  int post(std::vector<TapeLeg>& legs);
  void await(int post);
  void await_sent(std::vector<int>& sends);
  double handling(const TapeLeg& leg, bool is_send) const;

  Tape& tape_;
  const Cluster& cluster_;
  std::map<const SendQueue*, int> queues_;
};

}  // namespace thinwire
