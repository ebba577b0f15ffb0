// Charts of one row per point: bars, whole or in parts, and dots; with a whisker and small marks over seeds.
#include <algorithm>
#include <cmath>

#include "engine/run/trace/svg_chart.h"

namespace thinwire {
namespace {

std::string whisker(const ChartRow& r, const Scale& x, double y, bool ends) {
  if (!(r.high > r.low)) return "";
  std::string path = "M" + fixed(x(r.low)) + " " + fixed(y) + "H" + fixed(x(r.high));
  for (const double v : {r.low, r.high})
    if (ends) path += "M" + fixed(x(v)) + " " + fixed(y - 3) + "v6";
  return element("path", {{"class", "whisker"}, {"d", path}});
}

}  // namespace

std::string draw(RowChart chart) {
  const bool in_parts = !chart.parts.empty();
  for (ChartRow& r : chart.rows) {
    if (!in_parts) {
      r.values = {r.value};
      continue;
    }
    r.value = 0;
    for (const double v : r.values) r.value += std::max(0.0, v);
  }
  std::erase_if(chart.rows, [&](const ChartRow& r) { return !std::isfinite(r.value) || (in_parts && r.value <= 0); });
  if (chart.rows.empty()) return "";
  const auto say = [&](double v) { return format_axis_value(chart.format, v); };

  double level = 0;
  const std::string keys = color_keys(chart.parts, kChartWidth, level);
  const double pitch = chart.rows.size() <= 24 ? 22 : 16, top = in_parts ? level + 22 : 8;
  double foot = top + 4, widest = 0, behind = 0;
  std::vector<double> seen;
  if (chart.zero_line) seen.push_back(0.0);
  for (const ChartRow& r : chart.rows) {
    foot += pitch + (r.head.empty() ? 0 : 20);
    widest = std::max(widest, width_of(r.label));
    behind = std::max(behind, width_of(say(r.value) + (r.note.empty() ? "" : "  " + r.note)));
    seen.insert(seen.end(), {r.value, r.low, r.high});
  }
  const double left = std::min(200.0, widest + 14),
               right = kChartWidth - std::min(behind + (chart.dots ? 22 : 14), 190.0);
  using Kind = Scale::Kind;
  const Scale x = chart.dots ? Scale(seen, left + 4, right, chart.zero_line ? Kind::kSigned : Kind::kLinear)
                             : Scale(seen, left, right, Kind::kLinear, true, 0.02);
  std::string out = svg_open(chart.title, foot + 34) + keys;
  for (const double tick : x.ticks()) out += line_at(x(tick), top, x(tick), foot, "grid");
  if (chart.dots && chart.zero_line) out += line_at(x(0), top, x(0), foot, "axis");

  double at = top + 4;
  for (const ChartRow& r : chart.rows) {
    if (!r.head.empty()) {
      at += 20;
      const bool beside = width_of(r.head) < left - 8;
      out += text_at(beside ? left - 8 : 4, at - 7, beside ? "end" : "start", r.head, "bold");
    }
    const double mid = at + pitch / 2 - 1, text_foot = mid + 3.8;
    std::string row;
    if (chart.dots) {
      out += line_at(left, mid, right, mid, "grid");
      row = whisker(r, x, mid, false) + mark_at(x(r.value), mid, r.shape, r.color, 4.6);
    } else {
      double total = 0;
      for (size_t p = 0; p < r.values.size(); ++p) {
        const double v = r.values[p], from = x(total), to = x(total + v), apart = in_parts && to - from > 3 ? 0.8 : 0;
        if (in_parts && !(v > 0)) continue;
        row += box_at(std::min(from, to), at + 2, std::max(1.0, std::abs(to - from) - apart), pitch - 6,
                      in_parts ? static_cast<int>(p) : r.color, in_parts ? chart.parts[p] + " " + say(v) : "");
        total += v;
      }
      row += whisker(r, x, mid, true);
    }
    const double end = std::max(x(chart.dots ? r.value : std::max(0.0, r.value)), r.high > r.low ? x(r.high) : 0.0) + 8;
    row += text_at(left - 8, text_foot, "end", cut_to(r.label, left - 12), "ink") +
           text_at(end, text_foot, "start", say(r.value), "ink");
    if (!r.note.empty()) row += text_at(end + width_of(say(r.value) + "  "), text_foot, "start", r.note);
    out += linked(row, r.href, r.title.empty() ? r.label : r.title);
    for (const auto& one : r.each)
      out += linked(mark_at(x(one.x), mid, r.shape, r.color, 2.6, "dot small"), one.href, one.words);
    at += pitch;
  }
  return out + x_axis(x, foot, chart.format, chart.unit, foot + 34) + "</svg>";
}

}  // namespace thinwire
