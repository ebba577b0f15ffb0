// Building blocks of charts: SVG elements as text, marks, labels, axes. Colours, lines and fonts are
// classes of the style sheet (report_assets.cpp).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/trace/chart_scale.h"

namespace thinwire {

inline constexpr double kChartWidth = 560;
inline constexpr int kPalette = 8;

// Text made safe inside HTML elements and quoted attributes; bytes that are no UTF-8 become U+FFFD.
std::string html_escape(const std::string& text);
// A position with one digit behind the point.
std::string fixed(double v);
// "M1 2L3 4".
std::string path_of(const std::vector<std::pair<double, double>>& points);

struct Attribute {
  Attribute(const char* key, double v) : name(key), value(fixed(v)) {}
  Attribute(const char* key, const std::string& v) : name(key), value(html_escape(v)) {}
  Attribute(const char* key, const char* v) : name(key), value(v) {}
  const char* name;
  std::string value;
};
// <name key="value" ...>inner</name>; `inner` is markup, and without it the element closes itself.
std::string element(const char* name, std::initializer_list<Attribute> attributes, const std::string& inner = "");

std::string svg_open(const std::string& title, double height, double width = kChartWidth);
std::string color_class(int color);  // "c0" to "c7"
std::string text_at(double x, double y, const char* anchor, const std::string& words, const char* kind = "");
std::string line_at(double x1, double y1, double x2, double y2, const char* kind);
std::string box_at(double x, double y, double width, double height, int color, const std::string& title = "");
// One of five shapes of about the same area.
std::string mark_at(double x, double y, int shape, int color, double radius, const char* kind = "dot");
// A box and its name for each of `names`, by colour, in lines of `width`; `level` becomes the top of the last line.
std::string color_keys(const std::vector<std::string>& names, double width, double& level);
// `inner` leads to href, or is only grouped where that is empty; `title`: what a pointer over it says.
std::string linked(const std::string& inner, const std::string& href, const std::string& title);

// Letters are counted, not bytes; a little wider than most, so that what is measured with it fits.
double width_of(const std::string& text);
// Cut to about as many letters as there is room for, between characters.
std::string shortened(const std::string& text, size_t letters);
std::string cut_to(const std::string& text, double room);
// Positions at least `gap` apart in [low, high], near the wanted ones, which ascend; closer only where they do not fit.
std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high);

std::string y_axis(const Scale& y, double left, double right, AxisFormat format);
std::string x_axis(const Scale& x, double foot, AxisFormat format, const std::string& label, double height);

}  // namespace thinwire
