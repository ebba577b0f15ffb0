// Plans as a chart of spans, see plan_picture.h.
#include "engine/run/train/plan_picture.h"

#include <algorithm>

#include "engine/base/core/text.h"
#include "engine/run/trace/svg_chart.h"

namespace thinwire {
namespace {

// Colours of closing nodes, and of works where a rank has one chunk; by NodeKind without kExchange.
constexpr const char* kKinds[] = {
    "forward", "backward", "backward, input half", "backward, weight half", "reduce", "control", "optimizer", "gather"};

std::string in_words(double ms) {
  return format_axis_value(AxisFormat::kTime, ms);
}
std::string percent(double share) {
  return printed("idle %.2f %%", 100.0 * share);
}

// With several chunks, each has a colour for its forward and one for its backward work.
int color_of(const PlanNode& node, bool chunked) {
  const int kind = static_cast<int>(node.kind);
  if (node.kind > NodeKind::kExchange) return kind - 1;
  return chunked ? std::min(node.chunk, 3) + (node.kind == NodeKind::kForward ? 0 : 4) : kind;
}

}  // namespace

std::string plan_picture(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs) {
  const PlanTimes times = simulate(plans, shape, costs);
  const bool chunked = shape.chunks > 1;
  double shortest = times.total, idle = 0.0;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    idle += times.idle[stage] / static_cast<double>(plans.size());
    for (size_t i = 0; i < plans[stage].nodes.size(); ++i)
      if (const double ms = times.end[stage][i] - times.start[stage][i]; ms > 0.0) shortest = std::min(shortest, ms);
  }
  SpanChart chart{.title = "schedule", .x_label = "simulated time, then the closing nodes"};
  if (chunked) {
    for (const char* work : {"F.", "B."})
      for (int chunk = 0; chunk < 4; ++chunk) chart.keys.push_back(work + std::to_string(chunk));
  } else {
    chart.keys.assign(std::begin(kKinds), std::end(kKinds));
  }
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    SpanRow row{.label = "stage " + std::to_string(stage), .head = "", .note = percent(times.idle[stage])};
    double closing = times.total + shortest / 4;
    for (size_t i = 0; i < plans[stage].nodes.size(); ++i) {
      const PlanNode& node = plans[stage].nodes[i];
      if (node.kind == NodeKind::kExchange) continue;
      const std::string name = to_string(node, chunked);
      const int color = color_of(node, chunked);
      if (node.kind > NodeKind::kExchange) {
        row.spans.push_back({closing, closing + shortest, color, name, kKinds[static_cast<int>(node.kind) - 1]});
        closing += shortest;
      } else {
        const double from = times.start[stage][i], to = times.end[stage][i];
        row.spans.push_back(
            {from, to, color, std::to_string(node.micro), name + ": " + in_words(from) + " to " + in_words(to)});
      }
    }
    chart.rows.push_back(std::move(row));
  }
  // The shortest work is wide enough for its micro-batch number, but the picture not wider than a long screen.
  const double letters = static_cast<double>(std::to_string(shape.micro_batches - 1).size());
  const double works = times.total / std::max(shortest, 1e-9) + 4.25;
  chart.width = std::clamp(160.0 + works * (7.0 * letters + 10.0), 720.0, 2600.0);
  const std::string heading = std::to_string(shape.stages) + " stages, " + std::to_string(shape.micro_batches) +
                              " micro-batches" +
                              (chunked ? ", " + std::to_string(shape.chunks) + " virtual chunks" : "") + ": " +
                              in_words(times.total) + ", " + percent(idle);
  return as_file(draw(chart), heading);
}

}  // namespace thinwire
