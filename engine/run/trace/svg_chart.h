// Charts as inline SVG text: lines with points, and stacked bars. Colours come from the page's style sheet
// (report_assets.cpp).
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// Text made safe inside HTML elements and quoted attributes; bytes that are no UTF-8 become U+FFFD.
std::string html_escape(const std::string& text);

enum class AxisFormat { kPlain, kCount, kBytes, kScientific, kMilliseconds };  // format_word() knows the order

// 0.25, 12.5k, 1.5 GiB, 3.0e-4 ...
std::string format_axis_value(AxisFormat format, double value);

// Round positions that cover [low, high] with about `wanted` steps of 1, 2 or 5 times a power of ten. low < high.
std::vector<double> nice_ticks(double low, double high, int wanted);

struct ChartSeries {
  enum class Style { kLine, kFaintLine, kDashedPoints, kMarks };  // marks: short red ticks at the foot, y is not used
  std::string name;                                               // empty: not in the legend and not in the tooltip
  Style style = Style::kLine;
  int color = 0;          // index into the page's palette, taken modulo its size
  std::vector<double> x;  // ascending
  std::vector<double> y;  // NaN makes a gap
};

struct LineChart {
  std::string title, note;
  std::string x_label = "step";
  AxisFormat x_format = AxisFormat::kCount, y_format = AxisFormat::kPlain;
  bool from_zero = false;  // y axis starts at 0
  bool allow_log = false;  // logarithmic y axis when the largest value is over 30 times the median
  std::vector<ChartSeries> series;
};

struct StackedBars {
  std::string title, note;
  std::string x_label = "from step";
  AxisFormat format = AxisFormat::kMilliseconds;
  std::vector<std::string> parts;           // legend, bottom to top
  std::vector<std::string> labels;          // one per bar
  std::vector<std::vector<double>> values;  // [bar][part], >= 0
  bool totals = false;                      // the sum of each bar written above it (few bars)
  bool bar_colors = false;                  // a colour per bar and a legend of labels, instead of one per part
};

// A card of the page: heading, legend, drawing, and the data that the tooltip shows. A chart without one finite point
// says so.
std::string render(const LineChart& chart);
std::string render(const StackedBars& chart);

}  // namespace thinwire
