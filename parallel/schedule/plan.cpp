// Plans put together from works and messages, and their printed form.
#include "parallel/schedule/plan.h"

#include <algorithm>

#include "engine/base/core/check.h"
#include "parallel/schedule/schedules.h"

namespace thinwire {
namespace {

// Marks each chunk's last backward (or weight half), and counts how many weight halves wait at once.
void mark_last_and_waiting(Plan& plan) {
  std::vector<PlanNode*> last(plan.slots.size(), nullptr);
  int waiting = 0;
  for (PlanNode& node : plan.nodes) {
    if (node.kind == NodeKind::kBackwardInput) plan.weight_halves = std::max(plan.weight_halves, ++waiting);
    if (node.kind == NodeKind::kBackwardWeight) --waiting;
    if (node.kind == NodeKind::kBackward || node.kind == NodeKind::kBackwardWeight)
      last[static_cast<size_t>(node.chunk)] = &node;
  }
  for (PlanNode* node : last) node->last = true;
}

std::string label_of(int micro, int chunk, bool with_chunk) {
  return micro < 0 ? std::string() : std::to_string(micro) + (with_chunk ? "." + std::to_string(chunk) : "");
}

}  // namespace

std::vector<Plan> make_plans(const PipelineShape& shape) {
  check_shape(shape);
  std::vector<std::vector<Work>> orders;
  for (int stage = 0; stage < shape.stages; ++stage) orders.push_back(compute_order(shape, stage));
  std::vector<Plan> plans = place_exchanges(shape, orders);
  for (Plan& plan : plans) {
    mark_last_and_waiting(plan);
    for (NodeKind kind : {NodeKind::kReduce, NodeKind::kControl, NodeKind::kOptimizer, NodeKind::kGather})
      plan.nodes.push_back({kind});
  }
  return plans;
}

Plan make_plan(const PipelineShape& shape, int stage) {
  std::vector<Plan> plans = make_plans(shape);
  TW_CHECK(stage >= 0 && stage < shape.stages, "stage ", stage, " of ", shape.stages);
  return std::move(plans[static_cast<size_t>(stage)]);
}

std::string to_string(const PlanNode& node, bool with_chunk) {
  constexpr const char* letters[] = {"F", "B", "I", "W", "", "R", "C", "O", "G"};
  if (node.kind != NodeKind::kExchange)
    return letters[static_cast<int>(node.kind)] + label_of(node.micro, node.chunk, with_chunk);
  std::string text;
  for (const Message& m : node.messages)
    text += std::string(text.empty() ? "" : " ") + (m.send ? ">" : "<") + (m.forward ? "f" : "b") +
            label_of(m.micro, m.chunk, with_chunk);
  return "[" + text + "]";
}

std::string to_string(const Plan& plan, bool with_messages) {
  std::string text;
  for (const PlanNode& node : plan.nodes) {
    if (node.kind == NodeKind::kExchange && !with_messages) continue;
    text += (text.empty() ? "" : " ") + to_string(node, plan.slots.size() > 1);
  }
  return text;
}

}  // namespace thinwire
