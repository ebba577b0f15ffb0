// Parts of a step that queue the same work every time, so that the host need not queue it piece by piece again.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "engine/base/device/recording.h"

namespace thinwire {

// Which part, as its user numbers them.
struct SegmentKey {
  int part = 0, chunk = 0, slot = 0;
  auto operator<=>(const SegmentKey&) const = default;
};

// The first run of a segment is the call of its body: libraries load code, choose algorithms and take memory then. The
// second records the body, from the third on what was recorded is queued and the body is not called.
class StreamSegments {
 public:
  // Without a stream every run is the call of the body.
  explicit StreamSegments(RecordingStream* stream) : stream_(stream) {}
  StreamSegments(const StreamSegments&) = delete;
  StreamSegments& operator=(const StreamSegments&) = delete;

  // body() queues work on the stream and does nothing else that counts: it is not called at every run. What it queues
  // is the same for a key, pointers and numbers too; whatever differs from run to run is read from device memory.
  // `moves`: OpState::memory_moves() of the ops it uses; when that has changed everything is recorded anew.
  // Returns the recording that was made in this run, if one was (for the log).
  // Throws what body throws, with the stream as before; a body that waits while it is recorded is a failure.
  const Recording* run(const SegmentKey& key, uint64_t moves, const std::function<void()>& body);

  int64_t replays() const { return replays_; }  // runs in which the body was not called

 private:
  struct Segment {
    bool warm = false;
    std::unique_ptr<Recording> recording;
  };

  RecordingStream* stream_;
  std::map<SegmentKey, Segment> segments_;
  uint64_t moves_ = 0;
  int64_t replays_ = 0;
};

}  // namespace thinwire
