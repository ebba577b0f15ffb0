// Plans as a picture: a row per stage, works as boxes along the simulated time.
#include <algorithm>
#include <cstdio>

#include "parallel/schedule/plan.h"

namespace thinwire {
namespace {

struct Look {
  const char* name;
  const char* colour;
};
constexpr Look kLooks[] = {{"forward", "#9ecae1"},
                           {"backward", "#fdae6b"},
                           {"backward, input half", "#fdd0a2"},
                           {"backward, weight half", "#a1d99b"},
                           {"", ""},
                           {"reduce", "#bcbddc"},
                           {"control", "#d9d9d9"},
                           {"optimizer", "#fa9fb5"},
                           {"gather", "#dadaeb"}};
// Later chunks are darker, so that the way of a micro-batch through them can be followed.
constexpr const char* kForwardShades[] = {"#c6dbef", "#9ecae1", "#6baed6", "#4292c6"};
constexpr const char* kBackwardShades[] = {"#fdd0a2", "#fdae6b", "#fd8d3c", "#f16913"};

constexpr double kLeft = 84, kRight = 96, kTop = 34, kRow = 34, kBox = 26, kClosing = 22, kLegend = 34;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

const char* colour_of(const PlanNode& node, size_t chunks) {
  if (chunks > 1 && node.kind == NodeKind::kForward) return kForwardShades[std::min(node.chunk, 3)];
  if (chunks > 1 && node.kind == NodeKind::kBackward) return kBackwardShades[std::min(node.chunk, 3)];
  return kLooks[static_cast<int>(node.kind)].colour;
}

std::string text_at(double x, double y, const std::string& text, const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\"" + more + ">" + text + "</text>\n";
}

std::string box_at(double x, double y, double width, const char* colour, const std::string& label,
                   const std::string& title) {
  std::string box = "<g><title>" + title + "</title><rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" +
                    number(width) + "\" height=\"" + number(kBox) + "\" fill=\"" + colour +
                    "\" stroke=\"#444\" stroke-width=\"0.7\"/>";
  // About seven units a letter: what does not fit is left to the tooltip.
  if (width >= 7.0 * static_cast<double>(label.size()) + 2.0)
    box += text_at(x + width / 2, y + kBox / 2 + 4.5, label, " text-anchor=\"middle\"");
  return box + "</g>\n";
}

std::string legend(double y, bool split, size_t chunks) {
  std::string text;
  double x = kLeft;
  const auto entry = [&](const char* colour, const std::string& name) {
    text += box_at(x, y, 22, colour, "", name) + text_at(x + 28, y + kBox / 2 + 4.5, name);
    x += 44 + 7.0 * static_cast<double>(name.size());
  };
  if (chunks > 1) {
    for (size_t chunk = 0; chunk < std::min<size_t>(chunks, 4); ++chunk)
      entry(kForwardShades[chunk], "F." + std::to_string(chunk));
    for (size_t chunk = 0; chunk < std::min<size_t>(chunks, 4); ++chunk)
      entry(kBackwardShades[chunk], "B." + std::to_string(chunk));
    text += text_at(x, y + kBox / 2 + 4.5, "F forward, B backward, of a chunk");
    return text;
  }
  for (NodeKind kind : {NodeKind::kForward, NodeKind::kBackward, NodeKind::kBackwardInput, NodeKind::kBackwardWeight})
    if (split || kind < NodeKind::kBackwardInput)
      entry(kLooks[static_cast<int>(kind)].colour, kLooks[static_cast<int>(kind)].name);
  return text;
}

}  // namespace

std::string to_svg(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs) {
  const PlanTimes times = price(plans, shape, costs);
  // The shortest work is wide enough for its micro-batch number, but the picture not wider than a long screen.
  double shortest = times.total;
  bool split = false;
  for (size_t stage = 0; stage < plans.size(); ++stage)
    for (size_t i = 0; i < plans[stage].nodes.size(); ++i) {
      const double length = times.end[stage][i] - times.start[stage][i];
      if (length > 0.0) shortest = std::min(shortest, length);
      split = split || plans[stage].nodes[i].kind == NodeKind::kBackwardInput;
    }
  const double letters = static_cast<double>(std::to_string(shape.micro_batches - 1).size());
  const double scale = times.total > 0.0
                           ? std::clamp((7.0 * letters + 10.0) / shortest, 400.0 / times.total, 2400.0 / times.total)
                           : 1.0;
  const double end = kLeft + times.total * scale;
  const double closing = 4 * kClosing + 8;
  double width = end + closing + kRight, idle = 0.0;
  width = std::max(width, kLeft + 640.0);
  const double rows = kTop + kRow * static_cast<double>(plans.size());

  std::string body;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    const double y = kTop + kRow * static_cast<double>(stage) + (kRow - kBox) / 2;
    body += text_at(8, y + kBox / 2 + 4.5, "stage " + std::to_string(stage));
    body += "<rect x=\"" + number(kLeft) + "\" y=\"" + number(y) + "\" width=\"" + number(times.total * scale) +
            "\" height=\"" + number(kBox) + "\" fill=\"#f4f4f4\"/>\n";
    double x = end + 8;
    for (size_t i = 0; i < plans[stage].nodes.size(); ++i) {
      const PlanNode& node = plans[stage].nodes[i];
      if (node.kind == NodeKind::kExchange) continue;
      const std::string label = to_string(node, shape.chunks > 1);
      if (node.kind > NodeKind::kExchange) {
        const Look& look = kLooks[static_cast<int>(node.kind)];
        body += box_at(x, y, kClosing, look.colour, label, look.name);
        x += kClosing;
        continue;
      }
      const double from = times.start[stage][i], to = times.end[stage][i];
      body += box_at(kLeft + from * scale, y, (to - from) * scale, colour_of(node, plans[stage].slots.size()),
                     std::to_string(node.micro), label + ": " + number(from) + " to " + number(to) + " ms");
    }
    body += text_at(end + closing + 8, y + kBox / 2 + 4.5, "idle " + number(100.0 * times.idle[stage]) + " %");
    idle += times.idle[stage] / static_cast<double>(plans.size());
  }
  const std::string head = std::to_string(shape.stages) + " stages, " + std::to_string(shape.micro_batches) +
                           " micro-batches" +
                           (shape.chunks > 1 ? ", " + std::to_string(shape.chunks) + " virtual chunks" : "") + ": " +
                           number(times.total) + " ms, idle " + number(100.0 * idle) + " %";
  body = text_at(8, 20, head, " font-weight=\"bold\"") + body + legend(rows + 8, split, plans[0].slots.size());
  const std::string size = "width=\"" + number(width) + "\" height=\"" + number(rows + 8 + kLegend) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " font-family=\"sans-serif\" font-size=\"12\">\n" +
         "<rect " + size + " fill=\"#ffffff\"/>\n" + body + "</svg>\n";
}

}  // namespace thinwire
