// Who wants to know what rehearsed verbs would do, and not only how many bytes they would send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/device/stream.h"
#include "parallel/wire/progress.h"

namespace thinwire {

class RouteRun;
class RoundCodec;
struct GroupLane;

// Told by the channels that rehearse (Channel::rehearse) on a Progress with a watch, in the order in which the
// operation would do it. References end with the call. A watch overrides what it wants to know.
class RehearsalWatch {
 public:
  // A route with all its stops. Routes of one operation run one behind the other (of a collective in two levels, whose
  // steps overlap, too).
  virtual void route(const GroupLane& /*lane*/, const RouteRun& /*run*/) {}
  // A step without a route: `bytes` to each of these members, and as many from each of those, awaited together.
  virtual void exchange(const GroupLane& /*lane*/, std::span<const int> /*to*/, std::span<const int> /*from*/,
                        int64_t /*bytes*/) {}
  // A codec whose payloads add up works on `count` elements; its rounds follow as routes and steps.
  virtual void rounds(const RoundCodec& /*codec*/, int64_t /*count*/) {}
  // All that was told since the last call is one operation, which is issued here. The ticket is what is waited for.
  virtual Ticket issued(const OperationNote& note) = 0;
  // Of the operation that is told: a block of the pool that it takes beside its tensors, or gives back. written: bytes
  // of it that something comes to lie in; pages of the others are never taken of the system.
  virtual void block(int64_t /*bytes*/, int64_t /*written*/, bool /*taken*/) {}
  // Between ops and operations the device fills (nothing is read) or copies memory on the stream that computes.
  virtual void moved(size_t /*read*/, size_t /*written*/) {}

 protected:
  ~RehearsalWatch() = default;
};

// What a rehearsed verb would have of the pool while this lives. watch == nullptr: nobody wants to know.
class RehearsedBlocks {
 public:
  struct Block {
    Block(int64_t all = 0) : Block(all, all) {}
    Block(int64_t all, int64_t some) : bytes(all), written(some) {}
    int64_t bytes, written;  // bytes 0: none
  };
  using Sizes = std::array<Block, 5>;
  RehearsedBlocks(RehearsalWatch* watch, const Sizes& sizes) : watch_(watch), sizes_(sizes) { tell(true); }
  ~RehearsedBlocks() { tell(false); }
  RehearsedBlocks(const RehearsedBlocks&) = delete;
  RehearsedBlocks& operator=(const RehearsedBlocks&) = delete;

 private:
  void tell(bool taken) const {
    for (const Block& block : sizes_)
      if (watch_ != nullptr && block.bytes > 0) watch_->block(block.bytes, block.written, taken);
  }
  RehearsalWatch* watch_;
  Sizes sizes_;
};

// watch: outlives the operations; nullptr: nobody.
void watch_rehearsal(Progress& progress, RehearsalWatch* watch);

// Number of the communicator that a lane is of (Communicator's `number`).
int communicator_of(const GroupLane& lane);

}  // namespace thinwire
