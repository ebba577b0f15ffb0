// Routes between devices: what is packed, exchanged and absorbed is queued at once, and nothing passes the host.
//
// The same routes as on the host (route.h), so the same bytes: each flow, or hop of a ring, is one exchange of all
// ranks. Large slices go through the work space of the traffic piece by piece, each of them all the way. Messages are
// packed when their exchange is closed.
#pragma once

#include "parallel/collective/rehearsal.h"
#include "parallel/collective/route_run.h"
#include "parallel/device/device_communicator.h"

namespace thinwire {

// A verb that is queued between devices: its lane points here (Communicator::lane_of).
struct DeviceWork {
  DeviceCommunicator* there = nullptr;  // nullptr: it is not
  Stream* stream = nullptr;             // what it follows
  const char* verb = "";
  int peer = -1;
  Ticket ticket;  // of what was queued last
  int routes = 0;
  explicit operator bool() const { return there != nullptr; }
  // Runs a verb's task, which queues everything.
  Ticket run(const Task& task);
};

// Memory of a verb beside its routes: of the host, or where the lane is queued.
class VerbSpace {
 public:
  VerbSpace(const GroupLane& lane, int64_t bytes);
  ~VerbSpace();
  VerbSpace(const VerbSpace&) = delete;
  VerbSpace& operator=(const VerbSpace&) = delete;
  char* data() const { return data_; }

 private:
  RehearsedBlocks rehearsed_;
  Scratch<char> host_;
  DeviceTraffic* traffic_;
  char* data_;
};

// Run by run_route(). Every coded call has a device coder, and none is lossless.
void queue_route(const GroupLane& lane, RouteRun run);

}  // namespace thinwire
