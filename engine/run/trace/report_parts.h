// What the pages of a report share: formatted numbers, key figures, curves of runs, and the page around them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/trace/report_html.h"
#include "engine/run/trace/svg_chart.h"

namespace thinwire::report {

using Field = std::function<double(const StepPoint&)>;
inline constexpr size_t kSmoothFrom = 60;  // steps; shorter runs are shown as they are

// A dash for what is not finite.
std::string number(const char* format, double v);
// Milliseconds, or seconds from 1000 of them on.
std::string ms_text(double ms);
std::string count_or_dash(double v);
std::string bytes_or_dash(double v);  // 0 is a dash, too

struct Figures {
  int64_t steps = 0, skipped = 0;
  double loss = kNone;  // mean of the last tenth of the steps, at most 20
  double best_eval = kNone, last_eval = kNone, perplexity = kNone;
  int64_t best_eval_step = 0;
  double step_ms = kNone, step_ms_p95 = kNone, tokens_per_s = kNone, tflops = kNone, mfu = kNone;
  double exposed_ms = kNone;  // per step, median
  double tokens = kNone, memory = kNone, hours = 0;
  double wire = 0, logical = 0;  // rank 0, whole run
  double wire_total = 0;         // all ranks, whole run; 0: not known
};
Figures figures_of(const RunData& run);
// A sum over the run as a mean of its steps, also those in which a site paused. NaN where there are none.
double per_step(const RunData& run, double whole);

std::vector<double> column(const RunData& run, const Field& field);
inline double step_of(const StepPoint& p) {
  return static_cast<double>(p.step);
}
ChartSeries series(const RunData& run, const std::string& name, int color, const Field& y,
                   ChartSeries::Style style = ChartSeries::Style::kLine, const Field& x = step_of);
ChartSeries smooth(ChartSeries s);
// Whether every point has a finite x: lines of older versions lack some.
bool is_placed(const ChartSeries& s);

// What losses are drawn against: "step", "tokens" or "wall_s", the last in a unit that fits the longest of `runs`.
struct Axis {
  std::string label, of_title;  // of_title: "", " by tokens", " by time"
  Field step;
  std::function<double(const RunData&, const EvalPoint&)> eval;
};
Axis axis_of(const std::string& x, std::span<const RunData> runs);

ChartSeries eval_series(const RunData& run, const std::string& name, int color, const Axis& axis);
// Losses of an evaluation against the tokens in front, or the part of the sequence where its length is not known.
ChartSeries position_series(const RunData& run, const EvalPoint& e, const std::string& name, int color,
                            ChartSeries::Style style = ChartSeries::Style::kLine);
LineChart position_chart(std::span<const RunData> runs);
// The curve of every run, from colour `color` on, each under its name (a lone one under the chart's title); against
// `position` (x of every step, or nothing where it is not known) where that is given, else against steps.
using Position = std::function<std::vector<double>(const RunData&)>;
Position along(const Axis& axis);
std::string overlay(std::span<const RunData> runs, LineChart chart, const Field& y, bool smoothed = false,
                    const Position& position = {}, int color = 0);

// What was missing or broken in the run's files; with_name: says which run.
std::string notices(const RunData& run, bool with_name);
// A table of the page: `kind` is its class, `rows` are made by row().
std::string table(const std::string& kind, const std::vector<std::string>& head, const std::string& rows);
// `first` is HTML (attributes of its cell may stand in `first_kind`), `cells` are text; `last` is HTML behind them.
std::string row(const std::string& first, const std::vector<std::string>& cells, const std::string& first_kind = "",
                const std::string& last = "");
// A whole page around `body`. Without `script` it has no tooltips.
std::string page(const std::string& title, const std::string& body, std::string_view script);
// Of runs: with tooltips, and the footer that says what is counted.
std::string run_page(const std::string& title, const std::string& body, const Following& following = {});

// The style sheet and the script that every page carries inside itself; no page loads anything from elsewhere.
// Palette classes c0..c7, light and dark by the reader's own setting, and a form that prints. chart_style() is the part
// that a chart needs in a file of its own.
std::string_view chart_style();
std::string_view page_style();
// Crosshair and tooltip of the line charts; the page is complete without it.
std::string_view report_script();
// Of a page that is kept up to date: where it was scrolled to and what was unfolded stays. Loads itself again after
// `reload_s`, unless that is 0, and never while nobody sees it.
std::string follow_script(double reload_s);

}  // namespace thinwire::report
