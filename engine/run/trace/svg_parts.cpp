// Elements, words and axes of svg_parts.h.
#include "engine/run/trace/svg_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/base/core/text.h"

namespace thinwire {
namespace {

constexpr double kLetter = 6.1;  // width of a letter in text of 11 px

bool continues(const std::string& text, size_t at) {
  return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80;
}

std::string title_of(const std::string& words) {
  return words.empty() ? "" : "<title>" + html_escape(words) + "</title>";
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
    for (size_t k = 1; valid && k < length; ++k) valid = continues(text, i + k);
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

std::string fixed(double v) {
  std::string out = printed("%.1f", v);
  if (out.ends_with(".0")) out.erase(out.size() - 2);
  return out == "-0" ? "0" : out;
}

std::string path_of(const std::vector<std::pair<double, double>>& points) {
  std::string path;
  for (const auto& [x, y] : points) path += (path.empty() ? "M" : "L") + fixed(x) + " " + fixed(y);
  return path;
}

std::string element(const char* name, std::initializer_list<Attribute> attributes, const std::string& inner) {
  std::string out = std::string("<") + name;
  for (const Attribute& a : attributes)
    if (!a.value.empty()) out.append(" ").append(a.name).append("=\"").append(a.value).append("\"");
  return inner.empty() ? out + "/>" : out + ">" + inner + "</" + name + ">";
}

std::string svg_open(const std::string& title, double height, double width) {
  return "<svg viewBox=\"0 0 " + fixed(width) + " " + fixed(height) + "\" role=\"img\" aria-label=\"" +
         html_escape(title) + "\">";
}

std::string color_class(int color) {
  return {'c', static_cast<char>('0' + color % kPalette)};
}

std::string text_at(double x, double y, const char* anchor, const std::string& words, const char* kind) {
  return element("text", {{"class", kind}, {"x", x}, {"y", y}, {"text-anchor", anchor}}, html_escape(words));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* kind) {
  return element("line", {{"class", kind}, {"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}});
}

std::string box_at(double x, double y, double width, double height, int color, const std::string& title) {
  return element(
      "rect",
      {{"class", "fill " + color_class(color)}, {"x", x}, {"y", y}, {"width", width}, {"height", height}, {"rx", "2"}},
      title_of(title));
}

std::string mark_at(double x, double y, int shape, int color, double radius, const char* kind) {
  const Attribute style("class", std::string(kind) + " " + color_class(color));
  shape = (shape % 5 + 5) % 5;
  if (shape == 0) return element("circle", {style, {"cx", x}, {"cy", y}, {"r", radius}});
  using Points = std::vector<std::pair<double, double>>;
  static const Points kShapes[] = {{{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}},
                                   {{0, -1.25}, {1.15, 0.85}, {-1.15, 0.85}},
                                   {{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}},
                                   {{0, 1.25}, {1.15, -0.85}, {-1.15, -0.85}}};
  Points points = kShapes[shape - 1];
  for (auto& [a, b] : points) a = x + radius * a, b = y + radius * b;
  return element("path", {style, {"d", path_of(points) + "Z"}});
}

std::string color_keys(const std::vector<std::string>& names, double width, double& level) {
  std::string out;
  double used = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const double needed = width_of(names[i]) + 28;
    if (used > 0 && used + needed > width - 8) used = 0, level += 16;
    out += box_at(4 + used, 3 + level, 10, 10, static_cast<int>(i)) +
           text_at(18 + used, 12 + level, "start", names[i], "ink");
    used += needed;
  }
  return out;
}

std::string linked(const std::string& inner, const std::string& href, const std::string& title) {
  return element(href.empty() ? "g" : "a", {{"href", href}}, title_of(title) + inner);
}

double width_of(const std::string& text) {
  return kLetter * static_cast<double>(std::count_if(text.begin(), text.end(),
                                                     [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

std::string shortened(const std::string& text, size_t letters) {
  size_t seen = 0, end = 0;
  letters = std::max<size_t>(letters, 2);
  for (size_t at = 0; at < text.size(); ++seen) {
    if (seen == letters - 1) end = at;
    for (++at; continues(text, at);) ++at;
  }
  return seen <= letters ? text : text.substr(0, end) + "…";
}

std::string cut_to(const std::string& text, double room) {
  return shortened(text, static_cast<size_t>(std::max(3.0, room / kLetter)));
}

std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high) {
  if (wanted.size() > 1) gap = std::min(gap, (high - low) / static_cast<double>(wanted.size() - 1));
  std::vector<double> out;
  for (const double w : wanted) out.push_back(std::max(w, out.empty() ? low : out.back() + gap));
  double most = high;
  for (size_t i = out.size(); i-- > 0; most = out[i] - gap) out[i] = std::min(out[i], most);
  return out;
}

std::string y_axis(const Scale& y, double left, double right, AxisFormat format) {
  std::string out;
  for (const auto& [tick, words] : y.labels(format))
    out += line_at(left, y(tick), right, y(tick), "grid") + text_at(left - 6, y(tick) + 3.5, "end", words);
  return out;
}

std::string x_axis(const Scale& x, double foot, AxisFormat format, const std::string& label, double height) {
  std::string out = line_at(x.start, foot, x.end, foot, "axis");
  double taken = -1e9;
  for (const auto& [tick, words] : x.labels(format, 6)) {
    const double at = x(tick), half = width_of(words) / 2;
    if (at - half < taken) continue;
    out += line_at(at, foot, at, foot + 3, "axis") + text_at(at, foot + 15, "middle", words);
    taken = at + half + 6;
  }
  return out + text_at((x.start + x.end) / 2, height - 3, "middle", label + (x.bent() ? ", log scale" : ""));
}

}  // namespace thinwire
