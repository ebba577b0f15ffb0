// Host memory for a device's memory that waits: copies on streams of their own, and no wait of the host.
#pragma once

#include <memory>
#include <vector>

#include "engine/base/device/device.h"
#include "engine/base/device/spill_place.h"

namespace thinwire {

class SpillHost final : public SpillPlace {
 public:
  // Room is taken in pieces of this size, which the pool of page-locked memory keeps as they are; all of it as one
  // would be rounded up, by as much as an eighth.
  static constexpr size_t kPiece = size_t{256} << 20;

  // `bytes` of room, for transfers numbered 0 ... requests - 1 of memory that work on `compute` uses. Both directions
  // have a stream. Device and stream outlive it. Throws Error(kBadConfig) naming the room where there is not enough.
  SpillHost(Device& device, Stream& compute, uint64_t bytes, int requests, size_t piece = kPiece);
  ~SpillHost() override;
  SpillHost(const SpillHost&) = delete;
  SpillHost& operator=(const SpillHost&) = delete;

  void used(int request) override;
  void start(int request, bool write, void* memory, size_t bytes, uint64_t offset) override;
  // Never blocks the host, and does not know when.
  std::optional<Clock::time_point> wait(int request, Next next) override;
  std::string description() const override { return "page-locked host memory"; }

 private:
  struct Transfer {
    Ticket used;         // the last work on the memory
    Ticket moved, left;  // left: of a write, for who reads its place
    bool write = false;
  };
  Device& device_;
  Stream& compute_;
  size_t piece_;
  std::unique_ptr<Stream> out_, in_;
  std::vector<HostBuffer> pieces_;
  std::vector<Transfer> transfers_;
};

}  // namespace thinwire
