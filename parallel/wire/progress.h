// Drives a rank's transfers: coroutines under one mutex (the progress lock), polled by a waiting thread, or by the
// progress thread while nobody waits.
//
// Issuing an operation runs its coroutine to the first suspension on the caller's thread. Ticket::wait takes the
// progress lock and polls: for a short while at full speed, then with growing sleeps. The progress thread polls only
// while operations are open and nobody waits; between two polls it sleeps for half of the usual time between
// completions, 50 us to 4 ms. No thread spins without bound: there may be more ranks than cores. Coroutine frames,
// operations and scratch come from pools: the steady state allocates nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/device/stream.h"
#include "parallel/wire/counters.h"
#include "parallel/wire/task.h"
#include "parallel/wire/transport.h"

namespace thinwire {

class Keeper;
class WatchNet;

// Who issues an operation, in his own words: a name to print, and his number for the trace.
struct Label {
  const char* name = "";  // static text
  int number = 0;
};

// What the flight recorder, the watchdog and the trace know of an operation.
struct OperationNote {
  Label label;
  const char* verb = "";  // static text
  int group = 0;          // number of the communicator
  int peer = -1;          // world rank for send / receive, -1 for collectives
  uint32_t sequence = 0;  // from 0: of the communicator's collectives, or of the messages to or from that peer
  int64_t bytes = 0;
};

struct ProgressOptions {
  bool thread = true;             // false: operations move only while somebody waits or issues (tests)
  int spin_us = 50;               // polling at full speed before a waiter starts to sleep; 0 with more ranks than cores
  double watchdog_seconds = 0.0;  // silence that ends the job with code 71; 0: no watchdog
  std::string report_directory;   // where the watchdog leaves who-waits-for-whom; empty: stderr only
  std::vector<std::string> hosts;                           // per world rank, for the watchdog's message; may be empty
  std::function<void(const std::string& message)> on_hang;  // for a watchdog without a keeper, on a thread of its own
  WatchNet* watch_net = nullptr;                            // joined; these two outlive the engine, and may be missing
  Keeper* keeper = nullptr;
  bool starting = false;  // the job has not come to start yet, as the keeper is to know
};

// Called under the progress lock with every finished operation and every wait of the compute thread (trace, tests).
class OperationSink {
 public:
  virtual ~OperationSink() = default;
  using Clock = std::chrono::steady_clock;
  virtual void operation(const OperationNote& note, Clock::time_point issued, Clock::time_point done) = 0;
  virtual void waited(const OperationNote& note, Clock::time_point from, Clock::time_point to) = 0;
};

// One per rank. Thread-safe: operations may be issued and awaited from any thread of the rank, collectives of one
// communicator in the same order on all its ranks.
class Progress {
 public:
  Progress(Transport& transport, ProgressOptions options = {});
  ~Progress();  // operations that are still open fail: their tickets say so
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  Transport& transport();
  // Runs `task` to its first suspension; the ticket is done when it has returned. Exceptions of the task surface in the
  // ticket's wait. Not to be called from inside a task. The counters outlive the ticket.
  Ticket start(Task task, const OperationNote& note, WireCounters* counters);

  // One poll by the caller's thread: moves what can be moved and waits for nothing. True: something moved. With
  // ProgressOptions::thread off, one thread can so drive any number of ranks, each to the end of its tickets.
  bool poll();

  void set_sink(OperationSink* sink);  // nullptr: none
  BlockPool& pool();                   // for frames and scratch (scratch.h)
  // How long threads of this rank stood still since the last call; for_ns [world size]: for each rank, a wait being
  // that rank's whose message ended it.
  int64_t take_waits(std::vector<int64_t>& for_ns);
  // For the watchdog's report: what this rank is doing outside communication ("step 12").
  void set_activity(const std::string& text);

  struct Core;  // progress_core.h
  Core& core() { return *core_; }

 private:
  std::unique_ptr<Core> core_;
};

}  // namespace thinwire
