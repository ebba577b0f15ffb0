// Work that is recorded instead of done, and queued again as one: on a GPU a CUDA graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/device/stream.h"

namespace thinwire {

// Work as it was queued once: the same kernels with the same arguments and addresses. What may change between two times
// is the content of the memory that it works on.
class Recording {
 public:
  virtual ~Recording() = default;
  // Queues all of it on the stream that it was recorded on.
  virtual void queue() = 0;
  virtual int64_t size() const = 0;  // pieces of work, for the log
};

// A stream that can keep work for later. While it records, nobody may wait for it or for its whole device, nothing may
// be copied from or to the host on it, and no device memory taken or given back by the thread that records.
class RecordingStream : public Stream {
 public:
  // Why it cannot record, or nothing.
  virtual std::string cannot_record() const { return {}; }
  // From here on the work that this thread queues here is kept and does not happen.
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<Recording> end_recording() = 0;
  // Throws away what was recorded so far, where recording failed half-way.
  virtual void drop_recording() noexcept = 0;
};

}  // namespace thinwire
