// Points with names and the front of those that no other beats in both directions.
#include <algorithm>
#include <cmath>

#include "engine/run/trace/svg_chart.h"

namespace thinwire {
namespace {

struct Box {
  double left, top, right, bottom;
  bool hits(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Where a name may stand beside its point: offset, and what of it stands there.
struct Place {
  double dx, dy;
  const char* anchor;
};
constexpr Place kPlaces[] = {
    {9, 3.8, "start"},  {-9, 3.8, "end"},  {0, -9, "middle"},  {0, 17, "middle"}, {7, -8, "start"},  {7, 14, "start"},
    {-7, -8, "end"},    {-7, 14, "end"},   {14, -18, "start"}, {14, 24, "start"}, {-14, -18, "end"}, {-14, 24, "end"},
    {0, -26, "middle"}, {0, 34, "middle"}, {20, -32, "start"}, {20, 38, "start"}, {-20, -32, "end"}, {-20, 38, "end"}};

}  // namespace

std::string draw(const ScatterChart& chart) {
  std::vector<ChartPoint> points = chart.points;
  std::erase_if(points, [](const ChartPoint& p) { return !std::isfinite(p.x) || !std::isfinite(p.y); });
  if (points.empty()) return "";
  const double height = points.size() <= 24 ? 300 : 380, left = 56, top = 20, foot = height - 36,
               right = kChartWidth - 16;
  std::vector<double> xs, ys;
  for (const ChartPoint& p : points) xs.push_back(p.x), ys.push_back(p.y);
  if (chart.zero_line) ys.push_back(0.0);
  const Scale x(xs, left, right, Scale::Kind::kLogWhereNeeded, false, 0.08);
  const Scale y(ys, foot, top, chart.zero_line ? Scale::Kind::kSigned : Scale::Kind::kLinear, false, 0.09);
  std::string out = svg_open(chart.title, height) + y_axis(y, left, right, chart.y_format) +
                    x_axis(x, foot, chart.x_format, chart.x_label, height) +
                    text_at(4, 10, "start", chart.y_label + (y.bent() ? ", log scale" : ""));
  if (chart.zero_line && y.low < 0 && y.high > 0) out += line_at(left, y(0), right, y(0), "zero");
  out += text_at(right, 10, "end", chart.more_is_better ? "→ better ↓" : "better ← ↓");

  std::vector<const ChartPoint*> front, named;
  std::vector<Box> taken;
  std::string marks;
  for (const ChartPoint& p : points) {
    const double r = p.small ? 3.0 : 4.8;
    taken.push_back({x(p.x) - r, y(p.y) - r, x(p.x) + r, y(p.y) + r});
    marks += linked(mark_at(x(p.x), y(p.y), p.shape, p.color, r, p.small ? "dot small" : "dot"), p.href, p.title);
    if (p.front) front.push_back(&p);
    if (!p.name.empty()) named.push_back(&p);
  }
  std::stable_sort(front.begin(), front.end(), [&](const ChartPoint* a, const ChartPoint* b) {
    return chart.more_is_better ? a->x < b->x : a->x > b->x;
  });
  std::string path;
  for (const ChartPoint* p : front)  // around what the front dominates
    path += path.empty() ? "M" + fixed(x(p->x)) + " " + fixed(y(p->y)) : "V" + fixed(y(p->y)) + "H" + fixed(x(p->x));
  if (front.size() > 1) out += element("path", {{"class", "front"}, {"d", path}});
  out += marks;

  std::stable_partition(named.begin(), named.end(), [](const ChartPoint* p) { return p->first || p->front; });
  for (const ChartPoint* p : named) {
    const double a = x(p->x), b = y(p->y), width = width_of(p->name);
    for (const auto& [dx, dy, anchor] : kPlaces) {
      const double begin = a + dx - (*anchor == 'e' ? width : *anchor == 'm' ? width / 2 : 0);
      const Box room{begin, b + dy - 9.5, begin + width, b + dy + 2};
      if (room.left < left + 2 || room.right > kChartWidth || room.top < top - 8 || room.bottom > foot - 1 ||
          std::any_of(taken.begin(), taken.end(), [&](const Box& other) { return room.hits(other); }))
        continue;
      taken.push_back(room);
      if (std::abs(dy) > 17)
        out += element("path", {{"class", "lead"}, {"d", path_of({{a, b}, {a + dx, b + dy - (dy > 0 ? 4 : 0)}})}});
      out += linked(text_at(a + dx, b + dy, anchor, p->name, "ink"), p->href, p->title);
      break;
    }
  }
  return out + "</svg>";
}

}  // namespace thinwire
