// Line charts and stacked columns as SVG text: thinning of long series, legends, names of lines.
#include "engine/run/trace/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/base/core/text.h"

namespace thinwire {
namespace {

constexpr char kEmpty[] = "<p class=\"empty\">no values in this run</p>";
constexpr size_t kMaxPoints = 900;  // more do not show on a screen and make the page heavy

// The edges of the plot in a chart of kChartWidth, in units of the SVG's view box; y grows downwards.
struct Frame {
  double left = 58, right = kChartWidth - 12, top = 10, height = 240;
  double foot() const { return height - 34; }
};

// At most kMaxPoints of the series: the smallest and the largest value of every run of neighbours, so that spikes stay.
ChartSeries thin(const ChartSeries& s) {
  if (s.x.size() <= kMaxPoints || s.style == ChartSeries::Style::kMarks) return s;
  ChartSeries out = s;
  out.x.clear();
  out.y.clear();
  const size_t stretches = kMaxPoints / 2, n = s.x.size();
  for (size_t b = 0; b < stretches; ++b) {
    const size_t first = b * n / stretches, end = (b + 1) * n / stretches;
    size_t low = end, high = end;
    for (size_t i = first; i < end; ++i) {
      if (!std::isfinite(s.y[i])) continue;
      if (low == end || s.y[i] < s.y[low]) low = i;
      if (high == end || s.y[i] > s.y[high]) high = i;
    }
    if (low == end) low = high = first;
    for (const size_t i : {std::min(low, high), std::max(low, high)}) {
      if (!out.x.empty() && out.x.back() == s.x[i]) continue;
      out.x.push_back(s.x[i]);
      out.y.push_back(s.y[i]);
    }
  }
  return out;
}

bool shown(const ChartSeries& s, size_t i, const Scale& x, const Scale& y) {
  return std::isfinite(s.y[i]) && !(y.log && s.y[i] <= 0) && !(x.log && s.x[i] <= 0);
}

std::string line_path(const ChartSeries& s, const Scale& x, const Scale& y) {
  std::string path;
  bool pen_down = false;
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!shown(s, i, x, y)) {
      pen_down = false;
      continue;
    }
    path += (pen_down ? 'L' : 'M') + fixed(x(s.x[i])) + " " + fixed(y(s.y[i]));
    // A lone point between gaps would be invisible as a line.
    if (!pen_down && (i + 1 == s.x.size() || !shown(s, i + 1, x, y))) path += "h0.1";
    pen_down = true;
  }
  return path;
}

std::string curve(const ChartSeries& s, const Scale& x, const Scale& y) {
  using Style = ChartSeries::Style;
  std::string out;
  if (s.style == Style::kMarks) {
    for (const double at : s.x) out += line_at(x(at), y.start - 9, x(at), y.start, "mark");
    return out;
  }
  std::vector<std::pair<double, double>> edge;
  for (const auto& b : s.band)
    if (!(x.log && b.x <= 0)) edge.emplace_back(x(b.x), y(b.high));
  for (auto b = s.band.rbegin(); b != s.band.rend(); ++b)
    if (!(x.log && b->x <= 0)) edge.emplace_back(x(b->x), y(b->low));
  if (!edge.empty()) out += element("path", {{"class", "band " + color_class(s.color)}, {"d", path_of(edge) + "Z"}});
  const std::string kind = s.style == Style::kFaintLine      ? "line faint "
                           : s.style == Style::kDashedPoints ? "line dashed "
                           : s.dash % 4 == 0                 ? "line "
                                                             : "line d" + std::to_string(s.dash % 4) + " ";
  out += element("path", {{"class", kind + color_class(s.color)}, {"d", line_path(s, x, y)}});
  if (s.style == Style::kDashedPoints) {
    for (size_t i = 0; i < s.x.size(); ++i)
      if (shown(s, i, x, y)) out += mark_at(x(s.x[i]), y(s.y[i]), 0, s.color, 3);
  }
  return out;
}

std::string legend_entry(const std::string& name, const std::string& key_class) {
  return "<span class=\"key\"><i class=\"" + key_class + "\"></i>" + html_escape(name) + "</span>";
}

std::string legend_entry(const ChartSeries& s) {
  constexpr const char* kKinds[] = {"", "faintkey ", "dotkey ", "tick"};
  const std::string kind = kKinds[static_cast<size_t>(s.style)];
  return legend_entry(s.name, s.style == ChartSeries::Style::kMarks ? kind : kind + color_class(s.color));
}

// JSON inside a script element: nothing in it may look like the end of the element.
std::string data_element(const nlohmann::ordered_json& data) {
  std::string text = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) text.replace(at, 1, "\\u003c");
  return "<script type=\"application/json\">" + text + "</script>";
}

// To so many significant digits: a tooltip shows no more, and full ones would only swell the page. Not by std::stod,
// which throws for subnormal numbers.
double rounded(double v, int digits) {
  return v == 0.0 || !std::isfinite(v) ? v : std::strtod(printed("%.*g", digits, v).c_str(), nullptr);
}

struct Drawn {
  const LineChart& chart;
  std::vector<const ChartSeries*> series;  // those that have a point
  Frame frame;
  Scale x, y;
};

// Names at the ends of lines, at least a line of text apart.
std::string names_at_ends(const Drawn& d) {
  const double foot = d.frame.foot(), top = d.frame.top + 4, right = d.frame.right;
  std::vector<std::pair<double, const ChartSeries*>> ends;
  for (const ChartSeries* s : d.series) {
    const auto last = std::find_if(s->y.rbegin(), s->y.rend(), [](double v) { return std::isfinite(v); });
    if (last != s->y.rend()) ends.emplace_back(std::min(std::max(d.y(*last), top), foot), s);
  }
  std::stable_sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<double> wanted;
  for (const auto& end : ends) wanted.push_back(end.first);
  const std::vector<double> places = spread(wanted, 12, top, foot);
  std::string out;
  for (size_t i = 0; i < ends.size(); ++i) {
    const ChartSeries& s = *ends[i].second;
    const double last = std::min(d.x(s.x.back()), right);
    out += element("path", {{"class", "lead"}, {"d", path_of({{last + 5, wanted[i]}, {right + 10, places[i]}})}});
    const std::string words = cut_to(s.name, kChartWidth - right - 24);
    out += mark_at(right + 14, places[i], s.shape, s.color, 3.4) +
           linked(text_at(right + 21, places[i] + 3.8, "start", words, "ink"), s.ends.empty() ? "" : s.ends[0].href,
                  s.name);
  }
  return out;
}

// Names on the lines. Each has a level of its own, so that names lie one below the other.
std::string names_on_lines(const Drawn& d) {
  struct Inside {
    const ChartSeries* series;
    std::vector<std::pair<double, double>> points;
  };
  std::vector<Inside> lines;
  for (const ChartSeries* s : d.series) {
    Inside one{s, {}};
    for (size_t i = 0; i < s->x.size(); ++i)
      if (shown(*s, i, d.x, d.y) && d.y.covers(s->y[i])) one.points.emplace_back(d.x(s->x[i]), d.y(s->y[i]));
    if (!one.points.empty()) lines.push_back(std::move(one));
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Inside& a, const Inside& b) { return a.points.back().first < b.points.back().first; });
  std::string out;
  for (size_t n = 0; n < lines.size(); ++n) {
    const auto& [s, points] = lines[n];
    const double spacing = (d.frame.foot() - d.frame.top - 34) / std::max(1.0, static_cast<double>(lines.size()) - 1);
    const double level = d.frame.top + 16 + static_cast<double>(n) * spacing;
    const auto nearest = std::min_element(points.begin(), points.end(), [&](const auto& a, const auto& b) {
      return std::abs(a.second - level) < std::abs(b.second - level);
    });
    const std::string words = cut_to(s->name, 150);
    const double half = width_of(words) / 2,
                 at = std::min(std::max(nearest->first, d.frame.left + half + 2), kChartWidth - half);
    out += linked(text_at(at, nearest->second + 3.8, "middle", words, "on"), s->ends.empty() ? "" : s->ends[0].href,
                  s->name);
  }
  return out;
}

// Axes that fit the chart's values. `series` is empty where no y is finite.
Drawn laid_out(const LineChart& chart) {
  using Names = LineChart::Names;
  std::vector<const ChartSeries*> series;
  std::vector<double> xs, ys;
  for (const ChartSeries& s : chart.series) {
    const bool marks = s.style == ChartSeries::Style::kMarks;
    for (const double x : s.x)
      if (x > 0 || chart.x_scale != Scale::Kind::kLog) xs.push_back(x);
    if (marks || s.x.empty()) continue;
    series.push_back(&s);
    const double start = s.x.front() + chart.y_from * (s.x.back() - s.x.front());
    for (size_t i = 0; i < s.x.size(); ++i)
      if (s.x[i] >= start && std::isfinite(s.y[i])) ys.push_back(s.y[i]);
    for (const auto& b : s.band)
      if (b.x >= start) ys.insert(ys.end(), {b.low, b.high});
    for (const auto& end : s.ends) ys.push_back(end.y);
  }
  Frame frame;
  if (chart.names != Names::kLegend) {
    const bool named = series.size() > 1 || (series.size() == 1 && !series[0]->name.empty());
    double widest = 0;
    for (const ChartSeries* s : series) widest = std::max(widest, width_of(s->name));
    const double room = named && chart.names == Names::kEnds ? std::min(170.0, widest + 26) : 16.0;
    frame = {52, kChartWidth - room, 12,
             named ? std::max(250.0, 60 + 12.5 * static_cast<double>(series.size())) : 250.0};
  }
  Scale::Kind y_kind = chart.y_scale;
  if (chart.allow_log && !ys.empty()) {
    std::vector<double> sorted = ys;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.back() > 30 * sorted[sorted.size() / 2]) y_kind = Scale::Kind::kLog;
  }
  const double x_pad = chart.x_scale == Scale::Kind::kLinear ? 0.0 : 0.02;
  const Scale x(xs, frame.left, frame.right, chart.x_scale, false, x_pad);
  return {chart, ys.empty() ? std::vector<const ChartSeries*>{} : series, frame, x,
          Scale(ys, frame.foot(), frame.top, y_kind, chart.from_zero)};
}

std::string drawing(const Drawn& d) {
  const Frame& frame = d.frame;
  std::string out = svg_open(d.chart.title, frame.height) + y_axis(d.y, frame.left, frame.right, d.chart.y_format) +
                    x_axis(d.x, frame.foot(), d.chart.x_format, d.chart.x_label, frame.height);
  std::string curves, ends;
  if (d.chart.zero_line && d.y.low < 0 && d.y.high > 0)
    curves += line_at(frame.left, d.y(0), frame.right, d.y(0), "zero");
  for (const ChartSeries& s : d.chart.series) {
    curves += curve(thin(s), d.x, d.y);
    for (const auto& end : s.ends)
      if (d.y.covers(end.y))
        ends += linked(mark_at(d.x(end.x), d.y(end.y), s.shape, s.color, 3.6), end.href, end.words);
  }
  if (d.chart.y_from > 0) {
    // The id has to be unique on a page of several charts.
    const std::string clip = "clip" + std::to_string(std::hash<std::string>{}(d.chart.title + curves));
    out += element("clipPath", {{"id", clip}},
                   element("rect", {{"x", frame.left},
                                    {"y", frame.top},
                                    {"width", frame.right - frame.left + 6},
                                    {"height", frame.foot() - frame.top}}));
    curves = element("g", {{"clip-path", "url(#" + clip + ")"}}, curves);
  }
  out += curves + ends;
  if (d.chart.names == LineChart::Names::kOnLines) out += names_on_lines(d);
  const bool named = d.series.size() > 1 || !d.series[0]->name.empty();
  if (d.chart.names == LineChart::Names::kEnds && named) out += names_at_ends(d);
  return out + "</svg>";
}

}  // namespace

std::string card(const std::string& title, const std::string& note, const std::string& legend,
                 const std::string& body) {
  std::string out = "<figure class=\"card\"><figcaption><h3>" + html_escape(title) + "</h3>";
  if (!note.empty()) out += "<p>" + html_escape(note) + "</p>";
  if (!legend.empty()) out += "<div class=\"legend\">" + legend + "</div>";
  return out + "</figcaption>" + body + "</figure>\n";
}

std::string draw(const LineChart& chart) {
  const Drawn d = laid_out(chart);
  return d.series.empty() ? "" : drawing(d);
}

std::string render(const LineChart& chart) {
  const Drawn d = laid_out(chart);
  if (d.series.empty()) return card(chart.title, chart.note, "", kEmpty);
  std::string legend;
  nlohmann::ordered_json data;
  data["x"] = {d.x.low, d.x.high, d.x.start, d.x.end};
  data["foot"] = {d.y.end, d.y.start};
  data["xf"] = format_word(chart.x_format);
  data["yf"] = format_word(chart.y_format);
  data["series"] = nlohmann::ordered_json::array();
  for (const ChartSeries& full : chart.series) {
    if (full.name.empty()) continue;
    legend += legend_entry(full);
    if (full.style == ChartSeries::Style::kMarks) continue;
    const ChartSeries s = thin(full);
    nlohmann::ordered_json entry;
    entry["name"] = s.name;
    entry["color"] = s.color % kPalette;
    for (size_t i = 0; i < s.x.size(); ++i) {
      entry["x"].push_back(rounded(s.x[i], 8));
      entry["y"].push_back(std::isfinite(s.y[i]) ? nlohmann::ordered_json(rounded(s.y[i], 5))
                                                 : nlohmann::ordered_json(nullptr));
    }
    data["series"].push_back(entry);
  }
  const std::string note = d.y.log ? chart.note + (chart.note.empty() ? "" : ", ") + "logarithmic axis" : chart.note;
  return card(chart.title, note, chart.series.size() > 1 ? legend : "",
              "<div class=\"plot\">" + drawing(d) + data_element(data) + "</div>");
}

std::string render(const RowChart& chart, const std::string& note) {
  const std::string svg = draw(chart);
  return card(chart.title, note, "", svg.empty() ? kEmpty : svg);
}

std::string render(const StackedBars& chart) {
  const Frame frame;
  std::vector<double> sums;
  for (const auto& bar : chart.values) sums.push_back(std::accumulate(bar.begin(), bar.end(), 0.0));
  const double highest = sums.empty() ? 0.0 : *std::max_element(sums.begin(), sums.end());
  if (!(highest > 0.0)) return card(chart.title, chart.note, "", kEmpty);
  const Scale y({highest}, frame.foot(), frame.top, Scale::Kind::kLinear, true, 0.04);
  std::string svg = svg_open(chart.title, frame.height) + y_axis(y, frame.left, frame.right, chart.format);
  const size_t bars = chart.values.size();
  const double pitch = (frame.right - frame.left) / static_cast<double>(bars);
  const double width = std::min(pitch * 0.86, 46.0);
  const size_t label_stride = (bars + 7) / 8;
  const double label_room = pitch * static_cast<double>(label_stride);
  for (size_t b = 0; b < bars; ++b) {
    const double center = frame.left + (static_cast<double>(b) + 0.5) * pitch;
    std::string tip = chart.labels[b], boxes;
    double sum = 0.0;
    for (size_t p = 0; p < chart.parts.size(); ++p) {
      const double v = chart.values[b][p];
      tip += "\n" + chart.parts[p] + ": " + format_axis_value(chart.format, v);
      const double height = y(sum) - y(sum + v);
      sum += v;
      if (height < 0.05) continue;
      boxes += box_at(center - width / 2, y(sum), width, height, static_cast<int>(p));
    }
    svg += linked(boxes, "", tip);
    if (b % label_stride == 0)
      svg += text_at(center, frame.foot() + 15, "middle",
                     shortened(chart.labels[b], static_cast<size_t>(label_room / 6.2)));
  }
  svg += text_at((frame.left + frame.right) / 2, frame.height - 4, "middle", chart.x_label) +
         line_at(frame.left, frame.foot(), frame.right, frame.foot(), "axis") + "</svg>";
  std::string legend;
  for (size_t p = 0; p < chart.parts.size(); ++p)
    legend += legend_entry(chart.parts[p], "boxkey " + color_class(static_cast<int>(p)));
  return card(chart.title, chart.note, legend, "<div class=\"plot\">" + svg + "</div>");
}

}  // namespace thinwire
