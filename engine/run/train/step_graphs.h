// Which parts of a step are queued as recordings (CUDA graphs; key cuda_graphs), and why others are not.
#pragma once

#include <functional>
#include <string>

#include "engine/base/device/stream_segments.h"
#include "engine/run/train/replica.h"

namespace thinwire {

// Everything that differs from step to step lies in device memory: tokens, targets, weights of rows and sample numbers
// (which key dropout) in the buffers of a (chunk, slot), the loss scale in dlogits_scale, and what a step needs in
// its StepState. So a part queues the same work in every step, as long as nothing is communicated within it: passes of
// one rank, and of any number norms and those steps that no parameter all-gather follows unit by unit.
class StepGraphs {
 public:
  enum Part : int { kForward, kBackward, kNorms, kUpdate };

  explicit StepGraphs(Replica& replica);

  // Queues the part; `body` as in StreamSegments::run. chunk and slot: of a pass, else 0. first: of a step's passes,
  // which write gradients that the others add to; it has recordings of its own.
  template <typename Body>
  void run(Part part, int chunk, int slot, bool first, const Body& body) {
    if (!(part <= kBackward ? passes_ : rest_)) return body();
    record(part, chunk, slot, first, std::cref(body));  // a reference: no step allocates for its closure
  }
  int64_t replays() const { return segments_.replays(); }

 private:
  void record(Part part, int chunk, int slot, bool first, const std::function<void()>& body);

  Replica& replica_;
  bool passes_ = false, rest_ = false;  // what is recorded
  StreamSegments segments_;
};

}  // namespace thinwire
