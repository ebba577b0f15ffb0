// The way of device memory through the host: what a transport and codecs of the CPU need is copied there, and results
// back.
//
//   if (stream.device() != nullptr) {                    // the host cannot look into these views
//     HostStaging staged(stream);
//     const View there = staged.both(data);              // host memory with the contents; copied back at the end
//     return staged.finish(verb(there, staged.host()));  // waits for the copies, then starts
//   }
#pragma once

#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/device.h"
#include "engine/base/device/stream.h"

namespace thinwire {

// Of one operation. Page-locked buffers come from the device's pool and go back when the last copy out of them is done.
// The caller's views may be written again once the verb has returned (sent parts), or are written when the ticket is
// waited for (received parts): on the stream that waits.
class HostStaging {
 public:
  explicit HostStaging(Stream& stream) : stream_(stream), device_(*stream.device()) {}
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;
  ~HostStaging();

  // Host views of the same shape; empty views stay empty. A view that lies inside one given before shares its memory.
  View in(View device) { return place(device, true, false); }   // contents are read
  View out(View device) { return place(device, false, true); }  // contents are replaced
  View both(View device) { return place(device, true, true); }  // read and replaced
  // Waits until all contents have arrived. Call it between the views and the verb.
  Stream& host();
  // The verb's ticket with the copies back behind it.
  Ticket finish(Ticket verb);

 private:
  friend class StagedOperation;
  struct Piece {
    View device;
    HostBuffer host;
  };
  struct Return {
    void* device;
    const void* host;
    size_t bytes;
  };
  View place(View device, bool read, bool returned);

  Stream& stream_;
  Device& device_;
  HostStream host_;
  std::vector<Piece> pieces_;
  std::vector<Return> returns_;
  std::vector<Ticket> arriving_;
};

}  // namespace thinwire
