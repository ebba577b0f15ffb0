// Order as plain data: the nodes a rank executes in one update. The trainer walks them; nothing else decides order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

enum class NodeKind : uint8_t {
  kForward,         // one micro-batch through this rank's layers; on the last stage the loss too
  kBackward,        // input and weight gradients of one micro-batch, block by block
  kBackwardInput,   // input gradients only (zero-bubble schedules)
  kBackwardWeight,  // the weight gradients that kBackwardInput left behind
  kReduce,          // gradients of all units are complete: finish their reductions
  kControl,         // agree on norm, loss and non-finite flags
  kOptimizer,       // update this rank's slices, or skip
  kGather,          // make updated weights complete again
};

struct PlanNode {
  NodeKind kind;
  int micro = -1;     // micro-batch, -1 where it has no meaning
  bool last = false;  // backward: the last one of the update, so that unit gradients are final
};

struct Plan {
  std::vector<PlanNode> nodes;
  int live_micro_batches = 1;  // upper bound of micro-batches whose activations are alive at once
};

// One stage: forward and backward of each micro-batch in turn.
Plan one_stage_plan(int micro_batches);

// One line: "F0 B0 F1 B1 R C O G".
std::string to_string(const Plan& plan);

// The same as a picture: an SVG document, one box per node from left to right, backward boxes twice as wide as forward.
std::string to_svg(const Plan& plan);

}  // namespace thinwire
