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

  RouteAtOnce(const GroupLane& lane, const RouteRun& run);
  void receive();  // first: what comes before its receive was posted is copied once more
  void send();
  void add_up();  // once all is here

  Exchange exchange;

 private:
  size_t bytes(const Stop& stop) const { return static_cast<size_t>(stop.slice.count) * size_of(run_.dtypes[0]); }
  char* landing(int place) const { return space_.data() + static_cast<size_t>(place) * stride_; }

  const GroupLane& lane_;
  const RouteRun& run_;
  const Stop* add_ = nullptr;  // the stop that adds: at most one
  size_t stride_ = 0;
  Scratch<char> space_;             // what it waits for, by place
  const void** sources_ = nullptr;  // behind that
};

}  // namespace thinwire
