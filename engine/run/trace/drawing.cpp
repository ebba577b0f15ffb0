// Reads the charts of a JSON document and puts them into pages and files.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/base/core/error.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/report_parts.h"
#include "engine/run/trace/svg_chart.h"

namespace thinwire {

using Json = nlohmann::json;

// What is said of a chart in JSON has the names of its fields; what is not said stays as svg_chart.h has it.
inline void from_json(const Json& j, AxisFormat& format) {
  format = format_of_word(j.get<std::string>());
}
inline void to_json(Json& j, AxisFormat format) {
  j = format_word(format);
}
NLOHMANN_JSON_SERIALIZE_ENUM(Scale::Kind, {{Scale::Kind::kLinear, "linear"},
                                           {Scale::Kind::kLogWhereNeeded, "log_where_needed"},
                                           {Scale::Kind::kLog, "log"},
                                           {Scale::Kind::kSigned, "signed"}})
NLOHMANN_JSON_SERIALIZE_ENUM(LineChart::Names,
                             {{LineChart::Names::kEnds, "ends"}, {LineChart::Names::kOnLines, "on_lines"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartSeries::Band, x, low, high)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartSeries::End, x, y, href, words)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartSeries, name, color, dash, shape, x, y, band, ends)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LineChart, title, x_label, x_format, y_format, x_scale, y_scale, y_from,
                                                zero_line, names, series)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartRow, label, note, head, href, title, value, low, high, color,
                                                shape, values, each)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RowChart, title, unit, format, parts, dots, zero_line, rows)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartPoint, x, y, name, href, title, color, shape, small, first, front)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ScatterChart, title, x_label, y_label, x_format, y_format,
                                                more_is_better, zero_line, points)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Span, from, to, color, label, title)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SpanRow, label, head, note, spans)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SpanChart, title, x_label, format, from, to, width, keys, rows)

namespace {

std::string chart_of(const Json& j) {
  const std::string kind = j.at("chart");
  if (kind == "lines") {
    const auto chart = j.get<LineChart>();
    for (const ChartSeries& s : chart.series)
      if (s.x.size() != s.y.size()) throw_bad_data("--draw: series \"" + s.name + "\": x and y differ in length");
    return draw(chart);
  }
  if (kind == "rows") {
    const auto chart = j.get<RowChart>();
    for (const ChartRow& r : chart.rows)
      if (r.values.size() > std::max<size_t>(1, chart.parts.size()))
        throw_bad_data("--draw: row \"" + r.label + "\" has more values than the chart has parts");
    return draw(chart);
  }
  if (kind == "scatter") return draw(j.get<ScatterChart>());
  if (kind == "spans") return draw(j.get<SpanChart>());
  throw_bad_data("no chart " + kind + " (there are lines, rows, scatter, spans)");
}

}  // namespace

std::string as_file(const std::string& svg, const std::string& heading, const std::string& note) {
  if (svg.empty()) return "";
  double width = 0, height = 0;
  std::sscanf(svg.c_str(), "<svg viewBox=\"0 0 %lf %lf", &width, &height);
  const double above = note.empty() ? 26 : 41;
  const std::string w = fixed(width + 24), h = fixed(height + above + 14);
  const size_t from = svg.find('>') + 1;
  const std::string inner =
      element("style", {}, std::string(report::chart_style())) +
      element("rect", {{"class", "paper"}, {"width", "100%"}, {"height", "100%"}, {"rx", "8"}}) +
      text_at(12, 19, "start", heading, "head") + (note.empty() ? "" : text_at(12, 34, "start", note)) +
      element("g", {{"transform", "translate(12 " + fixed(above) + ")"}}, svg.substr(from, svg.rfind("</svg>") - from));
  return element("svg",
                 {{"xmlns", "http://www.w3.org/2000/svg"},
                  {"width", w},
                  {"height", h},
                  {"viewBox", "0 0 " + w + " " + h},
                  {"role", "img"},
                  {"aria-label", heading}},
                 inner) +
         "\n";
}

std::string draw_document(const std::string& text) {
  try {
    const Json j = Json::parse(text);
    if (j.contains("chart") || !j.contains("parts"))
      return as_file(chart_of(j), j.value("heading", ""), j.value("note", ""));
    std::string body;
    for (const Json& part : j.at("parts")) {
      if (part.is_string())
        body += part.get<std::string>();
      else if (const std::string svg = chart_of(part); !svg.empty())
        body += card(part.value("heading", ""), part.value("note", ""), "", svg);
    }
    return report::page(j.at("title"), body, "");
  } catch (const Json::exception& e) {
    throw_bad_data(std::string("--draw: not a page or a chart: ") + e.what());
  }
}

}  // namespace thinwire
