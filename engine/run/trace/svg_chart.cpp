// Scales, ticks, thinning of long series, and the SVG text itself.
#include "engine/run/trace/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/run/trace/console_progress.h"

namespace thinwire {
namespace {

constexpr double kWidth = 560, kHeight = 240, kLeft = 58, kRight = 12, kTop = 10, kBottom = 34;
constexpr double kPlotRight = kWidth - kRight, kPlotFoot = kHeight - kBottom;
constexpr int kPalette = 8;
constexpr size_t kMaxPoints = 900;  // more do not show on a screen and make the page heavy

std::string fixed(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", v);
  return text;
}

// Palette position as a class name, "c0" to "c7".
std::string color_class(int color) {
  return {'c', static_cast<char>('0' + color % kPalette)};
}

// Keeps the smallest and the largest value of each of a fixed number of stretches, so that a spike survives.
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

struct Scale {
  double low = 0, high = 1, from = 0, to = 1;  // values, positions
  bool log = false;
  double operator()(double v) const {
    const double t =
        log ? (std::log10(v) - std::log10(low)) / (std::log10(high) - std::log10(low)) : (v - low) / (high - low);
    return from + t * (to - from);
  }
};

Scale value_scale(const std::vector<double>& values, bool from_zero, bool allow_log) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  Scale s{sorted.front(), sorted.back(), kPlotFoot, kTop, false};
  const double median = sorted[sorted.size() / 2];
  if (allow_log && s.low > 0 && s.high > 30 * median) {
    s.log = true;
    s.low = std::pow(10.0, std::floor(std::log10(s.low)));
    s.high = std::pow(10.0, std::ceil(std::log10(s.high) + 1e-9));
    return s;
  }
  if (from_zero) s.low = std::min(s.low, 0.0);
  double span = s.high - s.low;
  if (span <= 0) span = std::abs(s.high) > 0 ? std::abs(s.high) * 0.2 : 1.0;
  s.high += 0.06 * span;
  if (!from_zero || s.low < 0) s.low -= 0.06 * span;
  if (sorted.front() >= 0) s.low = std::max(s.low, 0.0);
  return s;
}

std::vector<double> value_ticks(const Scale& s, AxisFormat format) {
  if (!s.log && format == AxisFormat::kBytes) {
    // Round in KiB, MiB or GiB, whichever is printed.
    double unit = 1.0;
    while (s.high >= 1024.0 * unit) unit *= 1024.0;
    std::vector<double> ticks = nice_ticks(s.low / unit, s.high / unit, 5);
    for (double& tick : ticks) tick *= unit;
    return ticks;
  }
  if (!s.log) return nice_ticks(s.low, s.high, 5);
  std::vector<double> ticks;
  const int first = static_cast<int>(std::lround(std::log10(s.low))),
            last = static_cast<int>(std::lround(std::log10(s.high)));
  const int stride = std::max(1, (last - first) / 5);
  for (int e = first; e <= last; e += stride) ticks.push_back(std::pow(10.0, e));
  return ticks;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" text-anchor=\"" + anchor + "\">" + html_escape(text) +
         "</text>";
}

// Cut to about as many letters as there is room for, between characters.
std::string shortened(const std::string& text, size_t room) {
  size_t letters = 0, end = 0;
  room = std::max<size_t>(room, 2);
  const auto continues = [&](size_t at) { return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80; };
  for (size_t at = 0; at < text.size(); ++letters) {
    if (letters == room - 1) end = at;
    for (++at; continues(at);) ++at;
  }
  return letters <= room ? text : text.substr(0, end) + "\xe2\x80\xa6";
}

std::string value_axis(const Scale& scale, AxisFormat format) {
  std::string out;
  for (const double tick : value_ticks(scale, format)) {
    const double y = scale(tick);
    if (y < kTop - 0.5 || y > kPlotFoot + 0.5) continue;
    out += "<line class=\"grid\" x1=\"" + fixed(kLeft) + "\" x2=\"" + fixed(kPlotRight) + "\" y1=\"" + fixed(y) +
           "\" y2=\"" + fixed(y) + "\"/>";
    out += text_at(kLeft - 6, y + 3.5, "end", format_axis_value(format, tick));
  }
  return out;
}

std::string line_path(const ChartSeries& s, const Scale& x, const Scale& y) {
  std::string path;
  bool pen_down = false;
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!std::isfinite(s.y[i]) || (y.log && s.y[i] <= 0)) {
      pen_down = false;
      continue;
    }
    path += (pen_down ? 'L' : 'M') + fixed(x(s.x[i])) + " " + fixed(y(s.y[i]));
    // A lone point between gaps would be invisible as a line.
    const bool alone = !pen_down && (i + 1 == s.x.size() || !std::isfinite(s.y[i + 1]));
    if (alone) path += "h0.1";
    pen_down = true;
  }
  return path;
}

std::string draw(const ChartSeries& s, const Scale& x, const Scale& y) {
  using Style = ChartSeries::Style;
  std::string out;
  if (s.style == Style::kMarks) {
    for (const double at : s.x)
      out += "<line class=\"mark\" x1=\"" + fixed(x(at)) + "\" x2=\"" + fixed(x(at)) + "\" y1=\"" +
             fixed(kPlotFoot - 9) + "\" y2=\"" + fixed(kPlotFoot) + "\"/>";
    return out;
  }
  const std::string kind = s.style == Style::kFaintLine      ? "line faint "
                           : s.style == Style::kDashedPoints ? "line dashed "
                                                             : "line ";
  out += "<path class=\"" + kind + color_class(s.color) + "\" d=\"" + line_path(s, x, y) + "\"/>";
  if (s.style == Style::kDashedPoints) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (!std::isfinite(s.y[i]) || (y.log && s.y[i] <= 0)) continue;
      out += "<circle class=\"dot " + color_class(s.color) + "\" cx=\"" + fixed(x(s.x[i])) + "\" cy=\"" +
             fixed(y(s.y[i])) + "\" r=\"3\"/>";
    }
  }
  return out;
}

std::string legend_entry(const std::string& name, const std::string& key_class) {
  return "<span class=\"key\"><i class=\"" + key_class + "\"></i>" + html_escape(name) + "</span>";
}

std::string card(const std::string& title, const std::string& note, const std::string& legend,
                 const std::string& body) {
  std::string out = "<figure class=\"card\"><figcaption><h3>" + html_escape(title) + "</h3>";
  if (!note.empty()) out += "<p>" + html_escape(note) + "</p>";
  if (!legend.empty()) out += "<div class=\"legend\">" + legend + "</div>";
  return out + "</figcaption>" + body + "</figure>\n";
}

std::string svg_open(const std::string& title) {
  return "<svg viewBox=\"0 0 " + std::to_string(static_cast<int>(kWidth)) + " " +
         std::to_string(static_cast<int>(kHeight)) + "\" role=\"img\" aria-label=\"" + html_escape(title) + "\">";
}

// JSON inside a script element: nothing in it may look like the end of the element.
std::string data_element(const nlohmann::ordered_json& data) {
  std::string text = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) text.replace(at, 1, "\\u003c");
  return "<script type=\"application/json\">" + text + "</script>";
}

// Four significant digits are what a tooltip shows; full ones would only swell the page.
double rounded(double v, int digits) {
  if (v == 0.0 || !std::isfinite(v)) return v;
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, v);
  return std::stod(text);
}

// What the tooltip's script calls a format.
const char* format_word(AxisFormat f) {
  constexpr const char* kWords[] = {"plain", "count", "bytes", "sci", "ms"};
  return kWords[static_cast<size_t>(f)];
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<uint8_t>(text[i]);
    const size_t length = c < 0x80                ? 1
                          : c >= 0xc2 && c < 0xe0 ? 2
                          : c >= 0xe0 && c < 0xf0 ? 3
                          : c >= 0xf0 && c < 0xf5 ? 4
                                                  : 0;
    bool valid = length != 0 && i + length <= text.size();
    for (size_t k = 1; valid && k < length; ++k) valid = (static_cast<uint8_t>(text[i + k]) & 0xc0) == 0x80;
    if (!valid || (c < 0x20 && c != '\n' && c != '\t' && c != '\r')) {
      out += "\xef\xbf\xbd";
      ++i;
      continue;
    }
    const size_t special = std::string_view("&<>\"'").find(text[i]);
    constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    if (special != std::string_view::npos)
      out += kEntities[special];
    else
      out.append(text, i, length);
    i += length;
  }
  return out;
}

std::string format_axis_value(AxisFormat format, double value) {
  char text[48];
  switch (format) {
    case AxisFormat::kCount:
      return format_count(value);
    case AxisFormat::kBytes:
      return value == 0.0 ? "0" : format_bytes(value);
    case AxisFormat::kScientific:
      return format_scientific(value);
    case AxisFormat::kMilliseconds:
      if (value >= 999.5)
        std::snprintf(text, sizeof text, "%.3g s", value / 1000.0);
      else
        std::snprintf(text, sizeof text, value == 0.0 ? "0" : "%.3g ms", value);
      return text;
    case AxisFormat::kPlain:
      break;
  }
  if (std::abs(value) >= 1e5) return format_count(value);
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::vector<double> nice_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1.0 ? 1 : lead <= 2.0 ? 2 : lead <= 5.0 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  // Counted from the first one: where values differ in their last bits alone, first + 1 is first.
  const int more = static_cast<int>(std::min(last - first, 100.0));
  for (int i = 0; i <= more; ++i) ticks.push_back((first + i) * step == 0.0 ? 0.0 : (first + i) * step);
  return ticks;
}

std::string render(const LineChart& chart) {
  std::vector<double> ys;
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low;
  for (const ChartSeries& s : chart.series) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      x_low = std::min(x_low, s.x[i]);
      x_high = std::max(x_high, s.x[i]);
      if (s.style != ChartSeries::Style::kMarks && std::isfinite(s.y[i])) ys.push_back(s.y[i]);
    }
  }
  if (ys.empty()) return card(chart.title, chart.note, "", "<p class=\"empty\">no values in this run</p>");
  if (x_low == x_high) x_high = x_low + 1;
  const Scale x{x_low, x_high, kLeft, kPlotRight, false};
  const Scale y = value_scale(ys, chart.from_zero, chart.allow_log);

  std::string svg = svg_open(chart.title) + value_axis(y, chart.y_format);
  for (const double tick : nice_ticks(x_low, x_high, 6))
    svg += text_at(x(tick), kPlotFoot + 15, "middle", format_axis_value(chart.x_format, tick));
  svg += text_at((kLeft + kPlotRight) / 2, kHeight - 4, "middle", chart.x_label);
  std::string legend;
  nlohmann::ordered_json data;
  data["x"] = {x_low, x_high, kLeft, kPlotRight};
  data["foot"] = {kTop, kPlotFoot};
  data["xf"] = format_word(chart.x_format);
  data["yf"] = format_word(chart.y_format);
  data["series"] = nlohmann::ordered_json::array();
  for (const ChartSeries& full : chart.series) {
    const ChartSeries s = thin(full);
    svg += draw(s, x, y);
    if (s.name.empty()) continue;
    const bool marks = s.style == ChartSeries::Style::kMarks;
    legend += legend_entry(s.name, marks ? "tick"
                                         : (s.style == ChartSeries::Style::kDashedPoints ? "dotkey "
                                            : s.style == ChartSeries::Style::kFaintLine  ? "faintkey "
                                                                                         : "") +
                                               color_class(s.color));
    if (marks) continue;
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
  svg += "<line class=\"axis\" x1=\"" + fixed(kLeft) + "\" x2=\"" + fixed(kPlotRight) + "\" y1=\"" + fixed(kPlotFoot) +
         "\" y2=\"" + fixed(kPlotFoot) + "\"/>";
  svg += "</svg>";
  const std::string note =
      y.log ? (chart.note.empty() ? "logarithmic axis" : chart.note + ", logarithmic axis") : chart.note;
  return card(chart.title, note, chart.series.size() > 1 ? legend : "",
              "<div class=\"plot\">" + svg + data_element(data) + "</div>");
}

std::string render(const StackedBars& chart) {
  double highest = 0.0;
  for (const auto& bar : chart.values) {
    double sum = 0.0;
    for (const double v : bar) sum += v;
    highest = std::max(highest, sum);
  }
  if (!(highest > 0.0)) return card(chart.title, chart.note, "", "<p class=\"empty\">no values in this run</p>");
  const Scale y{0.0, highest * (chart.totals ? 1.12 : 1.04), kPlotFoot, kTop, false};
  std::string svg = svg_open(chart.title) + value_axis(y, chart.format);
  const size_t bars = chart.values.size();
  const double pitch = (kPlotRight - kLeft) / static_cast<double>(bars);
  const double width = std::min(pitch * 0.86, 46.0);
  const size_t label_stride = chart.totals || chart.bar_colors ? 1 : (bars + 7) / 8;
  const size_t label_room = static_cast<size_t>(pitch * static_cast<double>(label_stride) / 6.2);
  for (size_t b = 0; b < bars; ++b) {
    const double center = kLeft + (static_cast<double>(b) + 0.5) * pitch;
    std::string tip = chart.labels[b];
    double sum = 0.0;
    std::string rects;
    for (size_t p = 0; p < chart.parts.size(); ++p) {
      const double v = chart.values[b][p];
      tip += "\n" + chart.parts[p] + (chart.parts[p].empty() ? "" : ": ") + format_axis_value(chart.format, v);
      const double height = y(sum) - y(sum + v);
      sum += v;
      if (height < 0.05) continue;
      rects += "<rect class=\"fill " + color_class(static_cast<int>(chart.bar_colors ? b : p)) + "\" x=\"" +
               fixed(center - width / 2) + "\" width=\"" + fixed(width) + "\" y=\"" + fixed(y(sum)) + "\" height=\"" +
               fixed(height) + "\"/>";
    }
    svg += "<g><title>" + html_escape(tip) + "</title>" + rects + "</g>";
    if (b % label_stride == 0) svg += text_at(center, kPlotFoot + 15, "middle", shortened(chart.labels[b], label_room));
    if (chart.totals && sum > 0.0) svg += text_at(center, y(sum) - 4, "middle", format_axis_value(chart.format, sum));
  }
  svg += text_at((kLeft + kPlotRight) / 2, kHeight - 4, "middle", chart.x_label);
  svg += "<line class=\"axis\" x1=\"" + fixed(kLeft) + "\" x2=\"" + fixed(kPlotRight) + "\" y1=\"" + fixed(kPlotFoot) +
         "\" y2=\"" + fixed(kPlotFoot) + "\"/></svg>";
  std::string legend;
  const std::vector<std::string>& names = chart.bar_colors ? chart.labels : chart.parts;
  for (size_t p = 0; p < names.size(); ++p)
    legend += legend_entry(names[p], "boxkey " + color_class(static_cast<int>(p)));
  return card(chart.title, chart.note, legend, "<div class=\"plot\">" + svg + "</div>");
}

}  // namespace thinwire
