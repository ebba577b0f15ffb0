// Rows of boxes along time: schedules and traces.
#include <algorithm>

#include "engine/run/trace/svg_chart.h"

namespace thinwire {

std::string draw(const SpanChart& chart) {
  std::vector<double> ends = {chart.from, chart.to};
  double label_width = 0, note_width = 0;
  for (const SpanRow& row : chart.rows) {
    label_width = std::max(label_width, width_of(row.label));
    note_width = std::max(note_width, width_of(row.note));
    for (const Span& s : row.spans)
      if (!(chart.from < chart.to)) ends.insert(ends.end(), {s.from, s.to});
  }
  const auto range = std::minmax_element(ends.begin(), ends.end());
  const double from = *range.first, to = *range.second;
  if (chart.rows.empty() || !(from < to)) return "";
  const double left = std::min(200.0, label_width + 16), right = chart.width - note_width - 14;
  const Scale x({from, to}, left, right, Scale::Kind::kLinear, false, 0.0);
  const auto place = [&](double time) { return x(std::clamp(time, from, to)); };

  constexpr double kRowHeight = 20;
  double keys_y = 0;
  const std::string keys = color_keys(chart.keys, chart.width, keys_y);
  double y = chart.keys.empty() ? 8 : keys_y + 24;
  std::string out;
  for (const SpanRow& row : chart.rows) {
    if (!row.head.empty()) out += text_at(4, y + 12, "start", row.head, "bold"), y += kRowHeight;
    out += text_at(left - 8, y + 13, "end", cut_to(row.label, left - 12), "ink") +
           line_at(left, y + kRowHeight, right, y + kRowHeight, "grid");
    for (const Span& s : row.spans) {
      if (s.to < from || s.from > to) continue;
      const double begin = place(s.from), width = std::max(place(s.to) - begin, 0.6);
      std::string box = box_at(begin, y + 1, width, kRowHeight - 3, s.color);
      if (width_of(s.label) + 4 <= width) box += text_at(begin + width / 2, y + 13, "middle", s.label, "on");
      out += linked(box, "", s.title.empty() ? s.label : s.title);
    }
    if (!row.note.empty()) out += text_at(right + 8, y + 13, "start", row.note);
    y += kRowHeight;
  }
  return svg_open(chart.title, y + 38, chart.width) + keys + out +
         x_axis(x, y + 4, chart.format, chart.x_label, y + 38) + "</svg>";
}

}  // namespace thinwire
