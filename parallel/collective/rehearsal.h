// Who wants to know what rehearsed verbs would do, and not only how many bytes they would send.
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/device/stream.h"
#include "parallel/wire/progress.h"

namespace thinwire {

class RouteRun;
class RoundCodec;
struct GroupLane;

// Told by the channels that rehearse (Channel::rehearse) on a Progress with a watch, in the order in which the
// operation would do it. References end with the call.
class RehearsalWatch {
 public:
  // A route with all its stops. Routes of one operation run one behind the other (of a collective in two levels, whose
  // steps overlap, too).
  virtual void route(const GroupLane& lane, const RouteRun& run) = 0;
  // A step without a route: `bytes` to each of these members, and as many from each of those, awaited together.
  virtual void exchange(const GroupLane& lane, std::span<const int> to, std::span<const int> from, int64_t bytes) = 0;
  // A codec whose payloads add up works on `count` elements; its rounds follow as routes and steps.
  virtual void rounds(const RoundCodec& codec, int64_t count) = 0;
  // All that was told since the last call is one operation, which is issued here. The ticket is what is waited for.
  virtual Ticket issued(const OperationNote& note) = 0;

 protected:
  ~RehearsalWatch() = default;
};

// watch: outlives the operations; nullptr: nobody.
void watch_rehearsal(Progress& progress, RehearsalWatch* watch);

// Number of the communicator that a lane is of (Communicator's `number`).
int communicator_of(const GroupLane& lane);

}  // namespace thinwire
