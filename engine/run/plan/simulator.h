// Executes linked tapes in simulated time: compute threads, the engines that move messages, cores and links, event by
// event. Deterministic: no random numbers, and events of one moment in a fixed order.
//
// A rank's compute thread works, issues and waits. An operation's instructions are executed by whoever has the progress
// lock: at its issue and while it waits the compute thread itself, otherwise the progress thread, which notices what
// has come after half a nap (progress_thread.cpp) and takes a core while it works. Threads share the cores of their
// machine, and messages the links, max-min fairly; those between two ranks move one behind the other. A message leaves
// when it was sent and, unless it is small, its receive is posted.
#pragma once

#include <string>
#include <vector>

#include "engine/run/plan/critical_path.h"
#include "engine/run/plan/tape_links.h"

namespace thinwire {

enum class SpanKind : uint8_t { kWork, kWait, kOperation };

// For the trace. operation: kWait, kOperation.
struct SimSpan {
  int actor = 0;
  SpanKind kind = SpanKind::kWork;
  NodeKind node = NodeKind::kControl;
  int micro = -1, operation = -1;
  double from = 0.0, to = 0.0;
};

// Where an actor's compute thread was in the measured step, in seconds.
struct ActorTimes {
  std::vector<double> step_ends;
  double compute = 0.0;         // what its work would have taken with the cores to itself
  double contention = 0.0;      // what it took longer
  double issue = 0.0;           // packing and sending on the compute thread
  std::vector<double> exposed;  // waits, by site
  double buffers = 0.0;         // bytes of the pool (BlockPool) that open operations have grown, by the end
  double early = 0.0;           // most bytes that had come before their receives were posted: the transport keeps them
  double wait() const;
};

struct Simulation {
  std::vector<ActorTimes> actors;
  // Of the measured step, where `spans` asks for them.
  std::vector<SimSpan> spans;
  std::vector<PathPart> critical;
  double step_seconds = 0.0;  // from the end of the step before, on all actors, to its end
  int64_t events = 0;
};

// steps: those of the tapes, at least 3. The last but one is measured: it begins with what the one before it has left
// under way, and ends as a step in the middle of a run does. In the last one a rank is late, for `buffers` and `early`:
// memory has to do for the worst step of a run.
Simulation simulate(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster, int steps,
                    bool spans = false);

}  // namespace thinwire
