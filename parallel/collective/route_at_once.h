// Routes of one plain piece a stop: every message is posted at once, from and to where it belongs. Small collectives
// would spend half of their time in setting up the windows of route_run.cpp.
#pragma once

#include "parallel/collective/route_run.h"

namespace thinwire {

// Lives in the frame of the coroutine that awaits `exchange`, as do `lane` and `run`.
class RouteAtOnce {
 public:
  // Nothing is compressed or passed on.
  static bool fits(const GroupLane& lane, const RouteRun& run);
  // Bytes that such a run takes of the pool.
  static int64_t space(const RouteRun& run);

  RouteAtOnce(const GroupLane& lane, const RouteRun& run);
  void receive();  // first: what comes before its receive was posted is copied once more
  void send();
  void add_up();  // once all is here

  Exchange exchange;

 private:
  static const Stop* sum_of(const RouteRun& run);  // the stop that adds: at most one
  static size_t stride(const RouteRun& run, const Stop& sum);
  size_t bytes(const Stop& stop) const { return static_cast<size_t>(stop.slice.count) * size_of(run_.dtypes[0]); }
  char* landing(int place) const;  // of what the peer at that place sends

  const GroupLane& lane_;
  const RouteRun& run_;
  const Stop* add_;
  size_t stride_ = 0;
  Scratch<char> space_;             // what it waits for, by place but its own
  const void** sources_ = nullptr;  // behind that
};

}  // namespace thinwire
