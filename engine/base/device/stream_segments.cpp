// First by hand, then recorded, then queued as one.
#include "engine/base/device/stream_segments.h"

namespace thinwire {

const Recording* StreamSegments::run(const SegmentKey& key, uint64_t moves, const std::function<void()>& body) {
  if (stream_ == nullptr) {
    body();
    return nullptr;
  }
  if (moves != moves_) {
    for (auto& [other, segment] : segments_) segment.recording.reset();  // they point at memory that is gone
    moves_ = moves;
  }
  Segment& segment = segments_[key];
  if (segment.recording) {
    segment.recording->queue();
    ++replays_;
    return nullptr;
  }
  if (!segment.warm) {
    body();
    segment.warm = true;
    return nullptr;
  }
  stream_->begin_recording();
  try {
    body();
  } catch (...) {
    stream_->drop_recording();
    throw;
  }
  segment.recording = stream_->end_recording();
  segment.recording->queue();
  return segment.recording.get();
}

}  // namespace thinwire
