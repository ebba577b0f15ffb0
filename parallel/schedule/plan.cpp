// The one-stage plan and the printed form of plans.
#include "parallel/schedule/plan.h"

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

std::string label_of(const PlanNode& node) {
  constexpr const char* letters[] = {"F", "B", "I", "W", "R", "C", "O", "G"};
  return letters[static_cast<int>(node.kind)] + (node.micro >= 0 ? std::to_string(node.micro) : std::string());
}

}  // namespace

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
  std::string text;
  for (const PlanNode& node : plan.nodes) text += (text.empty() ? "" : " ") + label_of(node);
  return text;
}

std::string to_svg(const Plan& plan) {
  constexpr const char* colours[] = {"#9ecae1", "#fdae6b", "#fdd0a2", "#fee6ce",
                                     "#bdbdbd", "#d9d9d9", "#a1d99b", "#dadaeb"};
  constexpr int kUnit = 36, kHeight = 28, kMargin = 8;
  std::string boxes;
  int x = kMargin;
  for (const PlanNode& node : plan.nodes) {
    const int width = node.kind == NodeKind::kBackward ? 2 * kUnit : kUnit;
    const std::string at = std::to_string(x), middle = std::to_string(x + width / 2);
    boxes += "<rect x=\"" + at + "\" y=\"" + std::to_string(kMargin) + "\" width=\"" + std::to_string(width) +
             "\" height=\"" + std::to_string(kHeight) + "\" fill=\"" + colours[static_cast<int>(node.kind)] +
             "\" stroke=\"#555\"/><text x=\"" + middle + "\" y=\"" + std::to_string(kMargin + 19) +
             "\" text-anchor=\"middle\">" + label_of(node) + "</text>\n";
    x += width;
  }
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(x + kMargin) + "\" height=\"" +
         std::to_string(kHeight + 2 * kMargin) + "\" font-family=\"sans-serif\" font-size=\"13\">\n" + boxes +
         "</svg>\n";
}

}  // namespace thinwire
