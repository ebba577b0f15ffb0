// Routes between devices: packing, exchange and decoding are queued on a stream at once, and no byte passes the host.
//
// The routes are those of the host (route.h), so the bytes are the same. Each flow, or hop of a ring, is one group of
// sends and receives of all ranks. A slice that is larger than the work space (DeviceTraffic) goes piece by piece: all
// exchanges of a piece are queued before those of the next. Point-to-point messages are packed when the exchange that
// they belong to is closed (DeviceTraffic::close_exchange).
#pragma once

#include "parallel/collective/rehearsal.h"
#include "parallel/collective/route_run.h"
#include "parallel/device/device_communicator.h"

namespace thinwire {

// An operation that is queued between devices: its lane points here (Communicator::lane_of).
struct DeviceWork {
  DeviceCommunicator* there = nullptr;  // nullptr: the operation goes through the host
  Stream* stream = nullptr;             // the operation follows what is queued there
  const char* verb = "";                // static text
  int peer = -1;
  Ticket ticket;   // of what was queued last
  int routes = 0;  // queued so far
  explicit operator bool() const { return there != nullptr; }
  // Runs the operation's task, which queues everything and suspends nowhere. Rethrows what it throws.
  Ticket run(const Task& task);
};

// Memory of an operation beside its routes: on the device for a lane that is queued there, else on the host.
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

// Queues the whole route; `lane.device` gets the ticket. Called by run_route(). Every coder is lossy and runs on
// devices (CodedCall::device), else it is a CHECK.
void queue_route(const GroupLane& lane, RouteRun run);

}  // namespace thinwire
