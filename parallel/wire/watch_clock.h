// What a watchdog measures silence and patience by, so that a test can hold the time in its own hands.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <utility>

#include "parallel/wire/file_lane.h"

namespace thinwire {

// The system's. Functions of one watchdog's thread, without a state of their own.
class WatchClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~WatchClock() = default;
  virtual Time now() { return std::chrono::steady_clock::now(); }
  // poll(2), for so many seconds at least; at 0 it only looks.
  virtual void poll(std::span<pollfd> wishes, double seconds) {
    const double most = std::min(std::max(seconds, 0.0), 1e6) * 1000.0;
    ::poll(wishes.data(), wishes.size(), seconds > 0.0 ? static_cast<int>(most) + 1 : 0);
  }
  virtual bool within(FileLane& lane, double seconds, std::function<void()> task) {
    return lane.within(seconds, std::move(task));
  }
};

}  // namespace thinwire
