// Charts as inline SVG text: lines, stacked columns, rows of bars or dots, and scatter plots with their Pareto front.
// Colours come from the page's style sheet (report_assets.cpp).
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "engine/run/trace/svg_parts.h"

namespace thinwire {

struct ChartSeries {
  enum class Style { kLine, kFaintLine, kDashedPoints, kMarks };  // marks: short red ticks at the foot, y is not used
  std::string name;                                               // empty: not in the legend and not in the tooltip
  Style style = Style::kLine;
  int color = 0;          // index into the page's palette, taken modulo its size
  std::vector<double> x;  // ascending
  std::vector<double> y;  // NaN makes a gap
  struct Band {
    double x = 0, low = 0, high = 0;
  };
  struct End {  // a mark that leads somewhere; `words`: what a pointer over it says
    double x = 0, y = 0;
    std::string href, words;
  };
  int dash = 0, shape = 0;
  std::vector<Band> band;
  std::vector<End> ends;
};

struct LineChart {
  // Where the names of the lines stand: in a legend above the chart (a tooltip then shows all values at the pointer);
  // at the ends of the lines; or on the lines, for curves that are shifted copies of each other.
  enum class Names { kLegend, kEnds, kOnLines };
  std::string title, note;
  std::string x_label = "step";
  AxisFormat x_format = AxisFormat::kNumber, y_format = AxisFormat::kNumber;
  bool from_zero = false;  // y axis starts at 0
  bool allow_log = false;  // logarithmic y axis when the largest value is over 30 times the median
  std::vector<ChartSeries> series;
  Names names = Names::kLegend;
  Scale::Kind x_scale = Scale::Kind::kLinear, y_scale = Scale::Kind::kLinear;
  double y_from = 0;  // the part of each line (0 to 1) from which on values decide the range of y; the rest is clipped
  bool zero_line = false;
};

struct StackedBars {
  std::string title, note;
  std::string x_label = "from step";
  AxisFormat format = AxisFormat::kTime;
  std::vector<std::string> parts;           // legend, bottom to top
  std::vector<std::string> labels;          // one per bar; every few of them are written
  std::vector<std::vector<double>> values;  // [bar][part], >= 0
};

// A card of the page: heading, legend, drawing, and the data that the tooltip shows. A chart without one finite point
// says so.
std::string render(const LineChart& chart);
std::string render(const StackedBars& chart);
std::string card(const std::string& title, const std::string& note, const std::string& legend, const std::string& body);

// The drawing alone, as of the charts below; "" where there is nothing to draw.
std::string draw(const LineChart& chart);

// One line of a chart of rows: what it is called, where it leads, what a pointer over it says.
struct ChartRow {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::string label, note, head, href, title;       // note: behind the value; head: a line of its own above this row
  double value = kNone, low = kNone, high = kNone;  // low and high: a whisker
  int color = 0, shape = 0;
  std::vector<double> values;          // one per part, where the chart has parts: `value` is then their sum
  std::vector<ChartSeries::End> each;  // small marks, y is not used
};
// A horizontal bar per row with its value at the end, cut into parts where there are some; or, with `dots`, a mark on
// an axis that need not start at zero.
struct RowChart {
  std::string title, unit;
  AxisFormat format = AxisFormat::kNumber;
  std::vector<ChartRow> rows;
  std::vector<std::string> parts;
  bool dots = false, zero_line = false;
};
std::string draw(RowChart chart);
// As a card of a page.
std::string render(const RowChart& chart, const std::string& note);

// What happens on several rows along time.
struct Span {
  double from = 0, to = 0;
  int color = 0;
  std::string label, title;  // label: inside of the box where it fits; title: what a pointer over it says
};
struct SpanRow {
  std::string label, head, note;  // head: a line of its own above this row; note: behind it
  std::vector<Span> spans;
};
struct SpanChart {
  std::string title, x_label;
  AxisFormat format = AxisFormat::kTime;
  double from = 0, to = 0;  // what is drawn; all of it unless from < to
  double width = kChartWidth;
  std::vector<std::string> keys;  // what the colours mean
  std::vector<SpanRow> rows;
};
std::string draw(const SpanChart& chart);

// A chart as a file of its own: with heading, background and style. "" for a chart that draws nothing.
std::string as_file(const std::string& svg, const std::string& heading, const std::string& note = "");

struct ChartPoint {
  double x = 0, y = 0;
  std::string name, href, title;  // names stand beside points as long as there is room, those with `first` first
  int color = 0, shape = 0;
  bool small = false, first = false, front = false;
};
struct ScatterChart {
  std::string title, x_label, y_label;
  AxisFormat x_format = AxisFormat::kNumber, y_format = AxisFormat::kNumber;
  std::vector<ChartPoint> points;  // those with `front` are joined by a step line
  bool more_is_better = true;      // of x; less of y is better
  bool zero_line = false;
};
std::string draw(const ScatterChart& chart);

}  // namespace thinwire
