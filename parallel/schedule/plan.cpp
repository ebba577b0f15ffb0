// The one-stage plan and the printed form of plans.
#include "parallel/schedule/plan.h"

#include "engine/base/core/check.h"

namespace thinwire {

Plan one_stage_plan(int micro_batches) {
  TW_CHECK(micro_batches >= 1);
  Plan plan;
  for (int micro = 0; micro < micro_batches; ++micro) {
    plan.nodes.push_back({NodeKind::kForward, micro, false});
    plan.nodes.push_back({NodeKind::kBackward, micro, micro == micro_batches - 1});
  }
  for (NodeKind kind : {NodeKind::kReduce, NodeKind::kControl, NodeKind::kOptimizer, NodeKind::kGather})
    plan.nodes.push_back({kind, -1, false});
  return plan;
}

std::string to_string(const Plan& plan) {
  constexpr const char* letters[] = {"F", "B", "I", "W", "R", "C", "O", "G"};
  std::string text;
  for (const PlanNode& node : plan.nodes) {
    if (!text.empty()) text += ' ';
    text += letters[static_cast<int>(node.kind)];
    if (node.micro >= 0) text += std::to_string(node.micro);
  }
  return text;
}

}  // namespace thinwire
