// Charts: scales that keep values inside and in order, round ticks, places of names, and short words for numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/base/core/error.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/svg_chart.h"

namespace thinwire::test_charts {
namespace {

using ScaleKind = Scale::Kind;

size_t occurrences(const std::string& text, std::string_view what) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++found;
  return found;
}

// Values in both directions over many decades.
std::vector<double> some_values(std::mt19937& random, double low_decade, double high_decade, size_t least) {
  std::vector<double> values(least + random() % 8);
  std::uniform_real_distribution<double> decade(low_decade, high_decade);
  for (double& v : values) v = (random() % 2 ? 1 : -1) * std::pow(10.0, decade(random));
  return values;
}

void expect_inside_and_in_order(const Scale& scale, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const bool up = scale.end > scale.start;
  double last = up ? -1e-6 : 500 + 1e-6;
  for (const double v : values) {
    EXPECT_TRUE(up ? scale(v) >= last : scale(v) <= last) << v;
    EXPECT_TRUE(scale(v) >= -1e-6 && scale(v) <= 500 + 1e-6) << v;
    last = scale(v);
  }
  const std::vector<double> ticks = scale.ticks();
  EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
  for (const double t : ticks) EXPECT_TRUE(scale(t) >= -1 && scale(t) <= 501) << t;
}

TEST(Charts, LabelsAreSpread) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> place(0, 200);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> wanted(1 + random() % 29);
    for (double& w : wanted) w = place(random);
    std::sort(wanted.begin(), wanted.end());
    const std::vector<double> got = spread(wanted, 12, 0, 200);
    const double gap = std::min(12.0, 200 / std::max(1.0, static_cast<double>(wanted.size()) - 1));
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 1; i < got.size(); ++i) EXPECT_GE(got[i] - got[i - 1], gap - 1e-9);
    EXPECT_GE(got.front(), -1e-6);
    EXPECT_LE(got.back(), 200 + 1e-6);
  }
  EXPECT_EQ(spread({10, 50}, 12, 0, 200), (std::vector<double>{10, 50}));
}

TEST(Charts, AxesTakeLogarithmsWhereTheRangeDemandsIt) {
  EXPECT_FALSE(Scale({1, 19}, 0, 100, ScaleKind::kLogWhereNeeded).log);
  EXPECT_TRUE(Scale({1, 30}, 0, 100, ScaleKind::kLogWhereNeeded).log);
  EXPECT_FALSE(Scale({0, 3000}, 0, 100, ScaleKind::kLogWhereNeeded).log);
  EXPECT_FALSE(Scale({-1, 3000}, 0, 100, ScaleKind::kLogWhereNeeded).log);
}

TEST(Charts, ScalesKeepValuesInsideAndInOrder) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<double> values = some_values(random, -6, 12, 1);
    expect_inside_and_in_order(Scale(values, 0, 500, ScaleKind::kLogWhereNeeded), values);
    expect_inside_and_in_order(Scale(values, 0, 500, ScaleKind::kLinear, true), values);
  }
  for (const std::vector<double>& values : {std::vector<double>{}, {0, 0}, {std::nan(""), 3}, {-2}})
    for (const bool zero : {false, true}) {
      const Scale scale(values, 0, 500, ScaleKind::kLinear, zero);
      EXPECT_TRUE(std::isfinite(scale(0)) && scale.high > scale.low);
    }
}

TEST(Charts, SignedLogarithmsWhereOneValueDwarfsTheOthers) {
  EXPECT_EQ(Scale({-0.3, 0.2, 0.0, 0.5}, 0, 500, ScaleKind::kSigned).linear, 0);
  std::mt19937 random(6);
  int bent = 0;
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> values = some_values(random, -2, 2, 2);
    values.push_back(0.0);
    const Scale scale(values, 500, 0, ScaleKind::kSigned);
    expect_inside_and_in_order(scale, values);
    if (!scale.bent()) continue;
    ++bent;
    const std::vector<double> ticks = scale.ticks();
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_NE(std::find(ticks.begin(), ticks.end(), 0.0), ticks.end());
    for (size_t i = 1; i < ticks.size(); ++i) EXPECT_GT(std::abs(scale(ticks[i]) - scale(ticks[i - 1])), 12);
  }
  EXPECT_GT(bent, 10);
}

TEST(Charts, TicksAreRoundAndInside) {
  for (const auto& [low, high] : {std::pair{0.0, 1.0}, {0.0, 97.3}, {-3e-4, 8e-4}, {1.5, 1.6}, {1e9, 3e9}}) {
    const std::vector<double> ticks = nice_ticks(low, high, 5);
    EXPECT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 8u);
    for (const double t : ticks) {
      EXPECT_GE(t, low - 1e-9 * (high - low));
      EXPECT_LE(t, high + 1e-9 * (high - low));
    }
  }
  EXPECT_EQ(nice_ticks(2.0, 2.0, 5).size(), 1u);
  EXPECT_LE(nice_ticks(2.5, std::nextafter(2.5, 3.0), 5).size(), 101u);  // it used to count for ever
}

TEST(Charts, NumbersAreShort) {
  const auto say = [](AxisFormat f) { return [f](double v) { return format_axis_value(f, v); }; };
  const auto number = say(AxisFormat::kNumber), bytes = say(AxisFormat::kDecimalBytes),
             percent = say(AxisFormat::kPercent);
  for (const auto& [value, words] : {std::pair{0.0, "0"},
                                     {1234567.0, "1.23M"},
                                     {999600.0, "1M"},
                                     {999.96, "1k"},
                                     {12.345, "12.3"},
                                     {0.00123, "0.00123"},
                                     {-1500.0, "−1.5k"},
                                     {100.0, "100"},
                                     {1e15, "1000T"},
                                     {std::nan(""), "–"}})
    EXPECT_EQ(number(value), words);
  EXPECT_EQ(bytes(500), "500 B");
  EXPECT_EQ(bytes(1.5e6), "1.5 MB");
  EXPECT_EQ(percent(3.14159), "+3.1 %");
  EXPECT_EQ(percent(-31.4), "−31.4 %");
  EXPECT_EQ(say(AxisFormat::kTime)(12345), "12.3 s");
  for (int f = 0; f <= static_cast<int>(AxisFormat::kLoss); ++f)
    EXPECT_EQ(format_of_word(format_word(static_cast<AxisFormat>(f))), static_cast<AxisFormat>(f));
}

TEST(Charts, Escaping) {
  EXPECT_EQ(html_escape("<a href='x'>&\"\xc3\xa9"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\xc3\xa9");
  EXPECT_EQ(html_escape("\xff\xc3"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_escape(std::string("\0", 1)), "\xef\xbf\xbd");
}

// Long names would run into the bars; whole they are in what the pointer shows.
TEST(Charts, BarsShortenLabelsBetweenCharacters) {
  RowChart chart{.title = "t", .format = AxisFormat::kTime};
  std::string label;
  for (int i = 0; i < 60; ++i) label += "\xc3\xa9";
  for (int i = 0; i < 8; ++i) chart.rows.push_back({.label = label, .value = 100.0 + i, .color = i});
  const std::string svg = render(chart, "");
  EXPECT_EQ(svg.find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_EQ(occurrences(svg, "\xc3\xa9\xe2\x80\xa6</text>"), 8u);
  EXPECT_EQ(occurrences(svg, "<title>" + label + "</title>"), 8u);
  EXPECT_EQ(occurrences(svg, ">107 ms</text>"), 1u);
  EXPECT_EQ(occurrences(svg, "class=\"fill c7\""), 1u);
}

// What report --draw reads may be anything; a run that diverged ends without a number.
TEST(Charts, OddDataIsRefusedOrDrawn) {
  for (const char* text : {R"({"chart":"lines","series":[{"name":"a","x":[1,2]}]})",
                           R"({"chart":"rows","rows":[{"label":"a","values":[1,2]}]})", R"({"chart":"pie"})"}) {
    EXPECT_THROW(draw_document(text), Error) << text;
  }
  LineChart diverged{.title = "t"};
  diverged.names = LineChart::Names::kEnds;
  diverged.series.push_back({.name = "run", .x = {1, 2}, .y = {1, std::numeric_limits<double>::quiet_NaN()}});
  diverged.series.back().shape = -1;
  const std::string svg = draw(diverged);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(occurrences(svg, ">run</text>"), 1u);
}

// Boxes outside of what is drawn are left out; a label stands where its box has space for it.
TEST(Charts, SpansAreBoxesAlongTime) {
  SpanChart chart{.title = "t", .from = 10, .to = 20, .keys = {"forward", "backward"}};
  chart.rows.push_back({.label = "rank 0",
                        .note = "idle",
                        .spans = {{0, 5, 0, "gone"}, {8, 15, 0, "long", "whole"}, {15, 15.01, 1, "short"}}});
  const std::string svg = draw(chart);
  EXPECT_EQ(svg.find("gone"), std::string::npos);
  EXPECT_EQ(occurrences(svg, ">long</text>"), 1u);
  EXPECT_EQ(occurrences(svg, "<title>whole</title>"), 1u);
  EXPECT_EQ(occurrences(svg, ">short</text>"), 0u);
  EXPECT_EQ(occurrences(svg, "<title>short</title>"), 1u);
  EXPECT_EQ(occurrences(svg, "<rect class=\"fill c0\""), 2u) << "one of them in the legend";
  EXPECT_EQ(draw(SpanChart{}), "");
}

// A long series is thinned for the page: its single spike must still be there.
TEST(Charts, ThinningKeepsSpikes) {
  LineChart chart{.title = "t", .series = {{"s", ChartSeries::Style::kLine, 0, {}, {}}}};
  for (int i = 0; i < 50000; ++i) {
    chart.series[0].x.push_back(i);
    chart.series[0].y.push_back(i == 31234 ? 777.0 : 1.0);
  }
  const std::string svg = render(chart);
  EXPECT_LT(svg.size(), 60000u);
  EXPECT_NE(svg.find("777"), std::string::npos);
  EXPECT_NE(svg.find("31234"), std::string::npos);
}

// Numbers at both ends of what a double holds, from a file that anybody may have written.
TEST(Charts, DrawsTheSmallestAndTheLargestNumbers) {
  constexpr double kLargest = std::numeric_limits<double>::max(), kSmallest = std::numeric_limits<double>::denorm_min();
  for (const double end : {kLargest, -kLargest, kSmallest, -kSmallest, 1e-308}) {
    const LineChart chart{.title = "t", .series = {{"s", ChartSeries::Style::kLine, 0, {1.0, 2.0}, {1.0, end}}}};
    EXPECT_NE(render(chart).find("</figure>"), std::string::npos) << end;
  }
}

}  // namespace
}  // namespace thinwire::test_charts
