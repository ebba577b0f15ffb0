// Copies device memory to the host before an operation, and results back behind it.
#include "parallel/wire/host_staging.h"

#include <exception>
#include <memory>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {

class StagedOperation final : public Operation {
 public:
  StagedOperation(Ticket verb, Stream& stream, Device& device, std::vector<HostStaging::Piece> pieces,
                  std::vector<HostStaging::Return> returns)
      : verb_(std::move(verb)),
        stream_(stream),
        device_(device),
        pieces_(std::move(pieces)),
        returns_(std::move(returns)) {}

  // noexcept holds: a ticket that is dropped too early throws, and while that unwinds the inner ticket does not.
  ~StagedOperation() noexcept override {}

  // With something to copy back it is not done before somebody waits: only wait_on() queues the copies.
  State state() const override { return verb_.open() || !returns_.empty() ? State::kIssued : State::kDone; }

  void wait_on(Stream& stream) override {
    verb_.wait(host_);  // throws what failed; the pieces stay until this operation goes
    Stream& behind = stream.device() != nullptr ? stream : stream_;
    for (const HostStaging::Return& r : returns_)
      device_.copy_to_device(r.device, r.host, r.bytes, behind).wait(behind);
    for (HostStaging::Piece& piece : pieces_) piece.host.leave_behind(behind);
    returns_.clear();
    pieces_.clear();
    if (stream.device() == nullptr) device_.mark(behind).wait_on_host();
  }
  void wait_on_host() override { wait_on(host_); }

 private:
  Ticket verb_;
  Stream& stream_;  // the one that the operation was issued on
  Device& device_;
  HostStream host_;
  std::vector<HostStaging::Piece> pieces_;
  std::vector<HostStaging::Return> returns_;
};

HostStaging::~HostStaging() {
  // Tickets are left only where something threw. Their copies may still be writing to the buffers.
  for (Ticket& ticket : arriving_) {
    try {
      ticket.wait_on_host();
    } catch (const std::exception&) {
    }
  }
}

View HostStaging::place(View device, bool read, bool returned) {
  View there = device;
  if (device.bytes() == 0) return there;
  char* const at = static_cast<char*>(device.data);
  there.data = nullptr;
  for (const Piece& piece : pieces_) {
    char* const first = static_cast<char*>(piece.device.data);
    if (at < first || at + device.bytes() > first + piece.device.bytes()) continue;
    there.data = static_cast<char*>(piece.host.data()) + (at - first);
    read = false;  // the piece around it is read as a whole, or replaced as a whole
  }
  if (there.data == nullptr) {
    pieces_.push_back({device, HostBuffer(device_, device.bytes())});
    there.data = pieces_.back().host.data();
  }
  if (read) arriving_.push_back(device_.copy_to_host(there.data, device.data, device.bytes(), stream_));
  if (returned) returns_.push_back({device.data, there.data, device.bytes()});
  return there;
}

Stream& HostStaging::host() {
  for (Ticket& ticket : arriving_) ticket.wait_on_host();
  arriving_.clear();
  return host_;
}

Ticket HostStaging::finish(Ticket verb) {
  TW_CHECK(arriving_.empty(), "a staged operation has started before its contents arrived");
  if (!verb.open() && returns_.empty()) return verb;
  return Ticket(
      std::make_shared<StagedOperation>(std::move(verb), stream_, device_, std::move(pieces_), std::move(returns_)));
}

}  // namespace thinwire
