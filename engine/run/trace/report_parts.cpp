// Words, numbers and curves of report_parts.h.
#include "engine/run/trace/report_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/run/trace/console_progress.h"

namespace thinwire::report {

using Style = ChartSeries::Style;

std::string number(const char* format, double v) {
  if (!std::isfinite(v)) return "–";
  char text[48];
  std::snprintf(text, sizeof text, format, v);
  return text;
}

std::string ms_text(double ms) {
  // As it will be rounded: 999.96 is a second.
  return ms >= 999.95 ? number("%.4g s", ms / 1000.0) : number("%.4g ms", ms);
}

namespace {

double quantile(std::vector<double> v, double q) {
  std::erase_if(v, [](double x) { return !std::isfinite(x); });
  if (v.empty()) return kNone;
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);  // between two values: as far as it is on the way
  const auto below = static_cast<size_t>(at);
  return std::lerp(v[below], v[std::min(below + 1, v.size() - 1)], at - static_cast<double>(below));
}

}  // namespace

std::vector<double> column(const RunData& run, const Field& field) {
  std::vector<double> out;
  out.reserve(run.steps.size());
  for (const StepPoint& p : run.steps) out.push_back(field(p));
  return out;
}

double per_step(const RunData& run, double whole) {
  return run.steps.empty() ? kNone : whole / static_cast<double>(run.steps.size());
}

Figures figures_of(const RunData& run) {
  Figures f;
  if (!run.steps.empty()) {
    f.steps = run.steps.back().step;
    f.tokens = run.steps.back().consumed_tokens;
  }
  const size_t n = run.steps.size(), tail = std::min<size_t>(20, (n + 9) / 10);
  double sum = 0;
  int64_t counted = 0;
  for (size_t i = 0; i < n; ++i) {
    const StepPoint& p = run.steps[i];
    f.skipped += p.skipped ? 1 : 0;
    if (std::isfinite(p.step_ms)) f.hours += p.step_ms / 3.6e6;
    if (std::isfinite(p.memory_bytes))
      f.memory = std::isnan(f.memory) ? p.memory_bytes : std::max(f.memory, p.memory_bytes);
    f.wire += p.wire_bytes;
    f.logical += p.logical_bytes;
    f.wire_total += p.wire_bytes_total;
    if (i + tail >= n && std::isfinite(p.loss)) {
      sum += p.loss;
      ++counted;
    }
  }
  if (counted > 0) f.loss = sum / static_cast<double>(counted);
  for (const EvalPoint& e : run.evals) {
    f.last_eval = e.loss;
    f.perplexity = e.perplexity;
    if (std::isfinite(e.loss) && !(f.best_eval <= e.loss)) {
      f.best_eval = e.loss;
      f.best_eval_step = e.step;
    }
  }
  f.step_ms = quantile(column(run, &StepPoint::step_ms), 0.5);
  f.step_ms_p95 = quantile(column(run, &StepPoint::step_ms), 0.95);
  f.tokens_per_s = quantile(column(run, &StepPoint::tokens_per_s), 0.5);
  f.tflops = quantile(column(run, &StepPoint::tflops), 0.5);
  f.exposed_ms = quantile(column(run, [](const StepPoint& p) { return p.sum(&SiteStep::exposed_ms); }), 0.5);
  f.mfu = quantile(column(run, &StepPoint::mfu), 0.5);
  return f;
}

std::string count_or_dash(double v) {
  return std::isfinite(v) ? format_count(v) : "–";
}
std::string bytes_or_dash(double v) {
  return std::isfinite(v) && v > 0 ? format_bytes(v) : "–";
}

ChartSeries series(const RunData& run, const std::string& name, int color, const Field& y, ChartSeries::Style style,
                   const Field& x) {
  return {name, style, color, column(run, x), column(run, y)};
}

// Mean over about a fortieth of the run around each point, as far back as forward while the curve starts (so that a
// steep start is not bent) and only back where it ends; gaps are bridged.
ChartSeries smooth(ChartSeries s) {
  const size_t n = s.y.size();
  std::vector<double> sum(n + 1, 0.0), count(n + 1, 0.0);
  for (size_t i = 0; i < n; ++i) {
    const bool finite = std::isfinite(s.y[i]);
    sum[i + 1] = sum[i] + (finite ? s.y[i] : 0.0);
    count[i + 1] = count[i] + (finite ? 1.0 : 0.0);
  }
  const size_t reach = n / 80 + 1;
  for (size_t i = 0; i < n; ++i) {
    const size_t back = std::min(reach, i), ahead = std::min({reach, i, n - 1 - i});
    const double values = count[i + ahead + 1] - count[i - back];
    if (values > 0) s.y[i] = (sum[i + ahead + 1] - sum[i - back]) / values;
  }
  s.style = Style::kLine;
  return s;
}

bool is_placed(const ChartSeries& s) {
  return !s.x.empty() && std::all_of(s.x.begin(), s.x.end(), [](double x) { return std::isfinite(x); });
}

Axis axis_of(const std::string& x, std::span<const RunData> runs) {
  if (x == "tokens") {
    const auto of = [](const RunData& run, int64_t step) {
      const auto at = std::lower_bound(run.steps.begin(), run.steps.end(), step,
                                       [](const StepPoint& p, int64_t s) { return p.step < s; });
      return at != run.steps.end() && at->step == step ? at->consumed_tokens : kNone;
    };
    return {"tokens", " by tokens", &StepPoint::consumed_tokens,
            [of](const RunData& run, const EvalPoint& e) { return of(run, e.step); }};
  }
  if (x == "wall_s") {
    double longest = 0;
    for (const RunData& run : runs)
      for (const StepPoint& p : run.steps) longest = std::max(longest, std::isfinite(p.wall_s) ? p.wall_s : 0);
    const auto [unit, word] = longest < 1000    ? std::pair(1.0, "seconds")
                              : longest < 18000 ? std::pair(60.0, "minutes")
                                                : std::pair(3600.0, "hours");
    return {std::string(word) + " since the first start", " by time",
            [unit = unit](const StepPoint& p) { return p.wall_s / unit; },
            [unit = unit](const RunData&, const EvalPoint& e) { return e.wall_s / unit; }};
  }
  return {"step", "", step_of, [](const RunData&, const EvalPoint& e) { return static_cast<double>(e.step); }};
}

Position along(const Axis& axis) {
  return [axis](const RunData& run) { return column(run, axis.step); };
}

ChartSeries eval_series(const RunData& run, const std::string& name, int color, const Axis& axis) {
  ChartSeries s{name, Style::kDashedPoints, color, {}, {}};
  for (const EvalPoint& e : run.evals) {
    const double x = axis.eval(run, e);
    if (!std::isfinite(x)) continue;
    s.x.push_back(x);
    s.y.push_back(e.loss);
  }
  return s;
}

ChartSeries position_series(const RunData& run, const EvalPoint& e, const std::string& name, int color, Style style) {
  ChartSeries s{name, style, color, {}, e.by_position};
  const double parts = static_cast<double>(e.by_position.size());
  for (size_t i = 0; i < e.by_position.size(); ++i)
    s.x.push_back((static_cast<double>(i) + 0.5) / parts * (std::isfinite(run.sequence) ? run.sequence : 1.0));
  return s;
}

LineChart position_chart(std::span<const RunData> runs) {
  const bool known = std::all_of(runs.begin(), runs.end(), [](const RunData& r) { return std::isfinite(r.sequence); });
  return {.title = "Loss by position",
          .note = "evaluation; where more tokens in front do not help, the model does not use them",
          .x_label = known ? "tokens in front" : "part of the sequence"};
}

std::string overlay(std::span<const RunData> runs, LineChart chart, const Field& y, bool smoothed,
                    const Position& position, int color) {
  for (const RunData& run : runs) {
    ChartSeries s = series(run, runs.size() == 1 ? chart.title : run.name, color++, y);
    if (position) {
      s.x = position(run);
      if (!is_placed(s) || !(s.x.back() > 0.0)) continue;
    }
    chart.series.push_back(smoothed && s.x.size() >= kSmoothFrom ? smooth(std::move(s)) : std::move(s));
  }
  return render(chart);
}

std::string notices(const RunData& run, bool with_name) {
  std::string items;
  for (const std::string& p : run.problems)
    items += "<li>" + (with_name ? "<b>" + html_escape(run.name) + "</b>: " : "") + html_escape(p) + "</li>";
  return items.empty() ? "" : "<ul class=\"notice\">" + items + "</ul>";
}

std::string table(const std::string& kind, const std::vector<std::string>& head, const std::string& rows) {
  std::string out = "<div class=\"" + kind + "\"><table><tr>";
  for (const std::string& cell : head) out += "<th>" + html_escape(cell) + "</th>";
  return out + "</tr>" + rows + "</table></div>";
}

std::string row(const std::string& first, const std::vector<std::string>& cells, const std::string& first_kind,
                const std::string& last) {
  std::string out = (first_kind.empty() ? "<tr><td>" : "<tr><td class=\"" + first_kind + "\">") + first + "</td>";
  for (const std::string& cell : cells) out += "<td>" + html_escape(cell) + "</td>";
  return out + last + "</tr>";
}

std::string page(const std::string& title, const std::string& body, std::string_view script) {
  const std::string scripted = script.empty() ? "" : "<script>" + std::string(script) + "</script>";
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width,initial-scale=1\">"
         "<title>" +
         html_escape(title) + "</title><style>" + std::string(chart_style()) + std::string(page_style()) +
         "</style></head><body><main>\n" + body + "</main>" + scripted + "</body></html>\n";
}

std::string run_page(const std::string& title, const std::string& body, const Following& following) {
  const std::string live =
      following.words.empty() ? "" : "<p class=\"sub live\">" + html_escape(following.words) + "</p>";
  return page(title,
              live + body +
                  "<footer>Model FLOP/s count matrix products of forward and backward with the causal half of "
                  "attention; recomputation is not counted. Written by thinwire report.</footer>",
              std::string(report_script()) + (live.empty() ? "" : follow_script(following.reload_s)));
}

}  // namespace thinwire::report
