// Streams and tickets: the one idea of time. A Stream is an ordered queue of work; whatever crosses streams is a
// Ticket.
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {

class Device;

// An ordered queue. On CPU it is the calling thread: work is done when the call returns.
class Stream {
 public:
  virtual ~Stream() = default;
  // The device whose memory work on this stream uses, where the host cannot look into that memory; else nullptr.
  virtual Device* device() { return nullptr; }
  // Blocks the host until everything queued so far has happened.
  virtual void synchronize() = 0;
};

// Host memory: the calling thread is the queue. Also the stream to give where nothing else touches the buffers.
class HostStream final : public Stream {
 public:
  void synchronize() override {}
};

// Something under way that a Ticket watches; implemented by communicators and by copy engines.
class Operation {
 public:
  enum class State { kIssued, kRecorded, kDone, kError };
  virtual ~Operation() = default;
  virtual State state() const = 0;
  // Drives progress until at least kRecorded, then makes later work of `stream` follow this operation.
  virtual void wait_on(Stream& stream) = 0;
  // Blocks the host until done; rethrows what failed.
  virtual void wait_on_host() = 0;
};

// The receipt for an operation. It leases the buffers of that operation: dropping an open one is a CHECK failure,
// because somebody would then use a buffer too early. A default ticket is finished and costs nothing (group size 1).
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;
  explicit Ticket(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  Ticket(Ticket&& other) noexcept = default;
  Ticket& operator=(Ticket&& other) noexcept = default;
  // (While an exception unwinds, the job is about to end, and the first failure is the one to report.)
  ~Ticket() noexcept(false) {
    TW_CHECK(!open() || std::uncaught_exceptions() > 0, "a ticket was dropped before anybody waited for it");
  }

  static Ticket finished() { return {}; }
  bool open() const { return operation_ != nullptr && operation_->state() != Operation::State::kDone; }
  // Later work queued on `stream` sees the result.
  void wait(Stream& stream) {
    if (operation_ == nullptr) return;
    const std::shared_ptr<Operation> operation = std::move(operation_);  // over in any case, also when it failed
    operation->wait_on(stream);
  }
  // The host may look at the result.
  void wait_on_host() {
    if (operation_ == nullptr) return;
    const std::shared_ptr<Operation> operation = std::move(operation_);
    operation->wait_on_host();
  }

 private:
  std::shared_ptr<Operation> operation_;
};

}  // namespace thinwire
