// Where memory waits for its next use: blocks go out and come back behind the computation.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace thinwire {

class SpillPlace {
 public:
  using Clock = std::chrono::steady_clock;
  // Memory, sizes and places are multiples of it: what direct I/O asks for.
  static constexpr size_t kBlock = 4096;

  virtual ~SpillPlace() = default;
  // The computation has queued work on the memory of transfer `request`: transfers started later come behind it.
  virtual void used(int request) = 0;
  // Starts transfer `request`. The one of that number before it has been waited for.
  virtual void start(int request, bool write, void* memory, size_t bytes, uint64_t offset) = 0;
  // Who comes behind a transfer: the computation, or nothing but transfers that are started later.
  enum class Next { kCompute, kTransfer };
  // What comes next may use memory and place of the transfer, also where none was started. When it was done (or that
  // was noticed), where the host knows. Throws Error(kIo) where it failed.
  virtual std::optional<Clock::time_point> wait(int request, Next next) = 0;
  // "io_uring, direct" and the like, for the log.
  virtual std::string description() const = 0;
};

}  // namespace thinwire
