// GPipe, 1F1B, interleaved 1F1B and ZB-H1 as orders of work.
#include "parallel/schedule/schedules.h"

#include <algorithm>
#include <string>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

std::vector<Work> all_forwards_first(int micro_batches) {
  std::vector<Work> order;
  for (int micro = 0; micro < micro_batches; ++micro) order.push_back({NodeKind::kForward, micro, 0});
  for (int micro = 0; micro < micro_batches; ++micro) order.push_back({NodeKind::kBackward, micro, 0});
  return order;
}

std::vector<Work> one_forward_one_backward(int stages, int micro_batches, int stage) {
  std::vector<Work> order;
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  for (int micro = 0; micro < warm_up; ++micro) order.push_back({NodeKind::kForward, micro, 0});
  for (int micro = 0; micro < micro_batches; ++micro) {
    if (micro + warm_up < micro_batches) order.push_back({NodeKind::kForward, micro + warm_up, 0});
    order.push_back({NodeKind::kBackward, micro, 0});
  }
  return order;
}

// 1F1B whose stage s runs its weight halves s micro-batches late. Those that are late at the end fill the cool-down,
// where 1F1B waits; what is kept for them is what stage s has to spare, since it warms up s forwards less than stage 0.
std::vector<Work> zero_bubble_h1(int stages, int micro_batches, int stage) {
  std::vector<Work> order;
  for (const Work& work : one_forward_one_backward(stages, micro_batches, stage)) {
    if (work.kind == NodeKind::kForward || stage == 0) {  // nothing late on stage 0: its halves stay together
      order.push_back(work);
      continue;
    }
    order.push_back({NodeKind::kBackwardInput, work.micro, 0});
    if (work.micro >= stage) order.push_back({NodeKind::kBackwardWeight, work.micro - stage, 0});
  }
  if (stage > 0)
    for (int micro = std::max(0, micro_batches - stage); micro < micro_batches; ++micro)
      order.push_back({NodeKind::kBackwardWeight, micro, 0});
  return order;
}

int interleaved_warm_up(const PipelineShape& shape, int stage) {
  return 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages;
}

// Megatron-LM walks groups of `stages` micro-batches through chunk after chunk. Where the last group is not full it
// would lock up (a stage waits for a chunk that is behind a backward which waits for this stage). So the plan is made
// for full groups and the micro-batches that do not exist are left out of it: what remains of an order that cannot
// lock up cannot either, and keeps its bound of memory.
std::vector<Work> interleaved(const PipelineShape& shape, int stage) {
  const int stages = shape.stages, chunks = shape.chunks;
  const int padded = (shape.micro_batches + stages - 1) / stages * stages;
  const int total = padded * chunks;
  const int warm_up = std::min(interleaved_warm_up(shape, stage), total);
  std::vector<Work> order;
  const auto add = [&](NodeKind kind, int k) {
    const int micro = k / (stages * chunks) * stages + k % stages;
    const int chunk = k % (stages * chunks) / stages;
    if (micro < shape.micro_batches)
      order.push_back({kind, micro, kind == NodeKind::kForward ? chunk : chunks - 1 - chunk});
  };
  for (int k = 0; k < warm_up; ++k) add(NodeKind::kForward, k);
  for (int k = 0; k < total; ++k) {
    if (k + warm_up < total) add(NodeKind::kForward, k + warm_up);
    add(NodeKind::kBackward, k);
  }
  return order;
}

}  // namespace

void check_shape(const PipelineShape& shape) {
  if (shape.stages < 1 || shape.chunks < 1 || shape.micro_batches < 1)
    throw_bad_config("a pipeline of " + std::to_string(shape.stages) + " stages, " + std::to_string(shape.chunks) +
                     " virtual chunks and " + std::to_string(shape.micro_batches) +
                     " micro-batches cannot be planned: each must be at least 1");
  if (shape.chunks > 1 && shape.kind != ScheduleKind::kInterleaved)
    throw_bad_config("only the interleaved schedule has virtual chunks; this one was given " +
                     std::to_string(shape.chunks) + " of them: choose interleaved, or 1 chunk");
}

std::vector<Work> compute_order(const PipelineShape& shape, int stage) {
  check_shape(shape);
  TW_CHECK(stage >= 0 && stage < shape.stages, "stage ", stage, " of ", shape.stages);
  if (shape.chunks > 1) return interleaved(shape, stage);
  // One stage has nobody to wait for: every schedule is forward, backward, forward, backward.
  if (shape.kind == ScheduleKind::kGpipe && shape.stages > 1) return all_forwards_first(shape.micro_batches);
  if (shape.kind == ScheduleKind::kZbH1) return zero_bubble_h1(shape.stages, shape.micro_batches, stage);
  return one_forward_one_backward(shape.stages, shape.micro_batches, stage);
}

}  // namespace thinwire
