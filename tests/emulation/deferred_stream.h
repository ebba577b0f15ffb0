// A stream of closures, for tests: what emulated kernels are queued on where their work shall not happen at once.
#pragma once

#include <functional>

#include "engine/base/device/recording.h"

namespace thinwire {

class DeferredStream : public RecordingStream {
 public:
  // Queues work(); while the stream records, keeps it instead.
  virtual void add(std::function<void()> work) = 0;
};

}  // namespace thinwire
