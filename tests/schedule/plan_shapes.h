// What the tests of plans share: names of schedules, and a walk over all shapes up to given sizes.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "parallel/schedule/plan.h"

namespace thinwire {

inline constexpr ScheduleKind kSchedules[] = {ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kInterleaved,
                                              ScheduleKind::kZbH1};

inline std::string text_of(const PipelineShape& shape) {
  constexpr const char* names[] = {"gpipe", "1f1b", "interleaved", "zb_h1"};
  return std::string(names[static_cast<int>(shape.kind)]) + " stages " + std::to_string(shape.stages) + " chunks " +
         std::to_string(shape.chunks) + " micro-batches " + std::to_string(shape.micro_batches);
}

// Calls visit for 1 .. stages, 1 .. chunks (interleaved alone has more than one) and 1 .. micro_batches.
inline void for_all_shapes(int stages, int chunks, int micro_batches,
                           const std::function<void(const PipelineShape&)>& visit) {
  for (ScheduleKind kind : kSchedules)
    for (int p = 1; p <= stages; ++p)
      for (int v = 1; v <= (kind == ScheduleKind::kInterleaved ? chunks : 1); ++v)
        for (int m = 1; m <= micro_batches; ++m) visit({kind, p, v, m});
}

// Forward or backward of a micro-batch, rather than communication or the optimizer.
inline bool is_work(NodeKind kind) {
  return kind < NodeKind::kExchange;
}
// Whether activations of the micro-batch are needed no longer afterwards.
inline bool finishes(NodeKind kind) {
  return kind == NodeKind::kBackward || kind == NodeKind::kBackwardWeight;
}

}  // namespace thinwire
