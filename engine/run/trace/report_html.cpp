// Puts the page together: which figures and charts, in which order, and the words around them.
#include "engine/run/trace/report_html.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "engine/run/trace/console_progress.h"
#include "engine/run/trace/report_assets.h"
#include "engine/run/trace/svg_chart.h"

namespace thinwire {
namespace {

using Style = ChartSeries::Style;
using Field = std::function<double(const StepPoint&)>;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string number(const char* format, double v) {
  if (!std::isfinite(v)) return "–";
  char text[48];
  std::snprintf(text, sizeof text, format, v);
  return text;
}

double quantile(std::vector<double> v, double q) {
  std::erase_if(v, [](double x) { return !std::isfinite(x); });
  if (v.empty()) return kNone;
  const auto at = static_cast<size_t>(q * static_cast<double>(v.size() - 1) + 0.5);
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(at), v.end());
  return v[at];
}

double sum_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return sum;
}

struct Figures {
  int64_t steps = 0, skipped = 0;
  double loss = kNone;  // mean of the last tenth of the steps, at most 20
  double best_eval = kNone, last_eval = kNone, perplexity = kNone;
  int64_t best_eval_step = 0;
  double step_ms = kNone, step_ms_p95 = kNone, tokens_per_s = kNone, tflops = kNone, mfu = kNone;
  double exposed_ms = kNone;
  double tokens = kNone, memory = kNone, hours = 0, wire = 0, logical = 0;
};

std::vector<double> column(const RunData& run, const Field& field) {
  std::vector<double> out;
  out.reserve(run.steps.size());
  for (const StepPoint& p : run.steps) out.push_back(field(p));
  return out;
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
  f.step_ms = quantile(column(run, [](const StepPoint& p) { return p.step_ms; }), 0.5);
  f.step_ms_p95 = quantile(column(run, [](const StepPoint& p) { return p.step_ms; }), 0.95);
  f.tokens_per_s = quantile(column(run, [](const StepPoint& p) { return p.tokens_per_s; }), 0.5);
  f.tflops = quantile(column(run, [](const StepPoint& p) { return p.tflops; }), 0.5);
  f.exposed_ms = quantile(column(run, [](const StepPoint& p) { return sum_of(p.site_exposed_ms); }), 0.5);
  f.mfu = quantile(column(run, [](const StepPoint& p) { return p.mfu; }), 0.5);
  return f;
}

std::string tile(const std::string& value, const std::string& label, const std::string& detail = "") {
  return "<div class=\"tile\"><span>" + html_escape(label) + "</span><b>" + html_escape(value) + "</b>" +
         (detail.empty() ? "" : "<em>" + html_escape(detail) + "</em>") + "</div>";
}

std::string count_or_dash(double v) {
  return std::isfinite(v) ? format_count(v) : "–";
}
std::string bytes_or_dash(double v) {
  return std::isfinite(v) && v > 0 ? format_bytes(v) : "–";
}

std::string tiles(const RunData& run) {
  const Figures f = figures_of(run);
  std::string out = "<div class=\"tiles\">";
  const int64_t planned = run.status ? run.status->total_steps : 0;
  out += tile(std::to_string(f.steps) + (planned > 0 ? " / " + std::to_string(planned) : ""), "steps",
              count_or_dash(f.tokens) + " tokens");
  out += tile(number("%.4f", f.loss), "training loss", "mean of the last steps");
  if (!run.evals.empty()) {
    out += tile(number("%.4f", f.last_eval), "evaluation loss",
                "best " + number("%.4f", f.best_eval) + " at step " + std::to_string(f.best_eval_step));
    out += tile(number("%.4g", f.perplexity), "perplexity", "at the last evaluation");
  }
  out += tile(count_or_dash(f.tokens_per_s), "tokens per second", "median");
  out += tile(number("%.4g ms", f.step_ms), "time per step", "median; 95 % within " + number("%.4g ms", f.step_ms_p95));
  out += tile(number("%.3g", f.tflops), "model TFLOP/s per rank",
              std::isfinite(f.mfu) ? "MFU " + number("%.1f %%", f.mfu * 100) : "peak not stated, no MFU");
  out += tile(bytes_or_dash(f.memory), "peak memory", "per rank");
  if (f.wire > 0)
    out += tile(format_bytes(f.wire), "sent over the wire",
                f.logical > 1.005 * f.wire ? number("%.2f", f.logical / f.wire) + " times less than uncompressed"
                                           : "rank 0, uncompressed");
  out +=
      tile(std::to_string(f.skipped), "skipped steps", f.skipped == 0 ? "all numbers finite" : "non-finite gradients");
  out += tile(format_duration(f.hours * 3600), "time in steps");
  return out + "</div>";
}

ChartSeries series(
    const RunData& run, const std::string& name, int color, const Field& y, Style style = Style::kLine,
    const Field& x = [](const StepPoint& p) { return static_cast<double>(p.step); }) {
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

ChartSeries eval_series(const RunData& run, const std::string& name, int color) {
  ChartSeries s{name, Style::kDashedPoints, color, {}, {}};
  for (const EvalPoint& e : run.evals) {
    s.x.push_back(static_cast<double>(e.step));
    s.y.push_back(e.loss);
  }
  return s;
}

ChartSeries skipped_series(const RunData& run) {
  ChartSeries s{"skipped step", Style::kMarks, 0, {}, {}};
  for (const StepPoint& p : run.steps) {
    if (!p.skipped) continue;
    s.x.push_back(static_cast<double>(p.step));
    s.y.push_back(kNone);
  }
  return s;
}

constexpr size_t kSmoothFrom = 60;  // shorter runs are shown as they are

std::string loss_chart(const RunData& run) {
  LineChart chart{
      .title = "Loss", .note = "cross entropy per token, natural logarithm", .allow_log = false, .series = {}};
  const ChartSeries raw = series(run, "training", 0, [](const StepPoint& p) { return p.loss; });
  if (raw.x.size() >= kSmoothFrom) {
    ChartSeries faint = raw;
    faint.style = Style::kFaintLine;
    ChartSeries mean = smooth(raw);
    mean.name = "training, smoothed";
    chart.series = {faint, mean};
  } else {
    chart.series = {raw};
  }
  if (!run.evals.empty()) chart.series.push_back(eval_series(run, "evaluation", 1));
  const ChartSeries skipped = skipped_series(run);
  if (!skipped.x.empty()) chart.series.push_back(skipped);
  return render(chart);
}

std::string simple_chart(const RunData& run, const std::string& title, const std::string& note, int color,
                         AxisFormat format, bool from_zero, bool allow_log, const Field& field) {
  LineChart chart{
      .title = title, .note = note, .y_format = format, .from_zero = from_zero, .allow_log = allow_log, .series = {}};
  chart.series.push_back(series(run, title, color, field));
  return render(chart);
}

// At most 36 bars, each the mean over a stretch of steps.
void fill_bars(const RunData& run, StackedBars& chart, const std::function<double(size_t step, size_t part)>& value) {
  const size_t n = run.steps.size(), bars = std::min<size_t>(n, 36);
  for (size_t b = 0; b < bars; ++b) {
    const size_t first = b * n / bars, end = (b + 1) * n / bars;
    std::vector<double> mean(chart.parts.size(), 0.0);
    for (size_t i = first; i < end; ++i)
      for (size_t part = 0; part < mean.size(); ++part) mean[part] += value(i, part);
    for (double& v : mean) v /= static_cast<double>(end - first);
    chart.values.push_back(mean);
    chart.labels.push_back(std::to_string(run.steps[first].step));
  }
}

std::string time_chart(const RunData& run) {
  StackedBars chart{.title = "Where the time of a step goes",
                    .note = "mean per step; the rest is time that no part claims",
                    .parts = run.time_names,
                    .labels = {},
                    .values = {}};
  const size_t parts = run.time_names.size(), n = run.steps.size();
  if (parts == 0) return render(chart);
  chart.parts.push_back("rest");
  std::vector<std::vector<double>> rest(n);
  for (size_t i = 0; i < n; ++i) {
    rest[i] = run.steps[i].time_ms;
    double claimed = 0;
    for (const double ms : rest[i]) claimed += ms;
    const double step_ms = run.steps[i].step_ms;
    rest[i].push_back(std::isfinite(step_ms) ? std::max(0.0, step_ms - claimed) : 0.0);
  }
  fill_bars(run, chart, [&](size_t step, size_t part) { return rest[step][part]; });
  return render(chart);
}

using SiteColumn = std::vector<double> StepPoint::*;

std::string site_bars(const RunData& run, const std::string& title, const std::string& note, AxisFormat format,
                      SiteColumn column) {
  StackedBars chart{.title = title, .note = note, .format = format, .parts = {}, .labels = {}, .values = {}};
  for (const SiteTotals& s : run.sites) chart.parts.push_back(s.site);
  fill_bars(run, chart, [&](size_t step, size_t part) { return (run.steps[step].*column)[part]; });
  return render(chart);
}

// What communication costs: bytes, time on the wire, and the part of it that compute had to wait for.
std::string communication_charts(const RunData& run) {
  if (run.sites.empty()) return "";
  std::string out = "<h2>Communication</h2><div class=\"charts\">";
  out += site_bars(run, "Bytes sent per step", "rank 0, by site, mean", AxisFormat::kBytes, &StepPoint::site_bytes);
  out += site_bars(run, "Exposed per step", "rank 0: time that compute stood still for a site",
                   AxisFormat::kMilliseconds, &StepPoint::site_exposed_ms);
  out +=
      site_bars(run, "Busy per step", "rank 0: time with an operation of the site under way; sites overlap each other",
                AxisFormat::kMilliseconds, &StepPoint::site_busy_ms);
  LineChart chart{.title = "Exposed communication against the step",
                  .note = "rank 0, all sites; what lies between is hidden under compute or compute itself",
                  .y_format = AxisFormat::kMilliseconds,
                  .from_zero = true,
                  .series = {}};
  chart.series.push_back(series(run, "step", 7, [](const StepPoint& p) { return p.step_ms; }));
  chart.series.push_back(series(run, "exposed", 1, [](const StepPoint& p) { return sum_of(p.site_exposed_ms); }));
  return out + render(chart) + "</div>";
}

std::string site_table(const RunData& run) {
  if (run.sites.empty()) return "";
  std::string out =
      "<h2>Sites over the whole run</h2><div "
      "class=\"scroll wide\"><table><tr><th>site</th><th>uncompressed</th><th>wire</th><th>ratio</th><th>baseline</"
      "th><th>all ranks</th><th>encode</th><th>decode</th><th>busy</th><th>exposed</th><th>hidden</th><th>relative "
      "error</th><th>residual norm</th></tr>";
  for (const SiteTotals& s : run.sites) {
    out += "<tr><td>" + html_escape(s.site) + "</td><td>" + format_bytes(s.logical_bytes) + "</td><td>" +
           format_bytes(s.wire_bytes) + "</td><td>" +
           (s.wire_bytes > 0 ? number("%.2f", s.logical_bytes / s.wire_bytes) : "–") + "</td><td>" +
           html_escape(s.baseline_dtype) + "</td><td>" + bytes_or_dash(s.wire_bytes_total) + "</td><td>" +
           format_duration(s.encode_ms / 1000) + "</td><td>" + format_duration(s.decode_ms / 1000) + "</td><td>" +
           format_duration(s.busy_ms / 1000) + "</td><td>" + format_duration(s.exposed_ms / 1000) + "</td><td>" +
           number("%.0f %%", s.busy_ms > 0 ? 100 * std::max(0.0, 1 - s.exposed_ms / s.busy_ms) : kNone) + "</td><td>" +
           number("%.3g", s.last_rel_error.value_or(kNone)) + "</td><td>" +
           number("%.3g", s.last_residual_norm.value_or(kNone)) + "</td></tr>";
  }
  return out + "</table></div>";
}

std::string skipped_table(const RunData& run) {
  constexpr int kShown = 20;
  std::string rows;
  int64_t count = 0;
  for (const StepPoint& p : run.steps) {
    if (!p.skipped) continue;
    if (++count > kShown) continue;
    rows += "<tr><td>" + std::to_string(p.step) + "</td><td>" +
            (p.non_finite.empty() ? "–" : html_escape(p.non_finite)) + "</td><td>" + number("%g", p.loss_scale) +
            "</td></tr>";
  }
  if (rows.empty()) return "";
  std::string out =
      "<h2>Skipped steps</h2><div class=\"scroll\"><table><tr><th>step</th><th>first non-finite tensor</th><th>loss "
      "scale</th></tr>" +
      rows + "</table></div>";
  if (count > kShown) out += "<p class=\"sub\">and " + std::to_string(count - kShown) + " more</p>";
  return out;
}

std::string pill(const RunData& run) {
  if (!run.status) return "";
  const RunStatus& s = *run.status;
  const char* kind = s.state == "finished"    ? "good"
                     : s.state == "preempted" ? "warn"
                     : s.state == "running"   ? "live"
                                              : "bad";
  std::string text = s.state;
  if (s.code && *s.code != 0)
    text += ", code " + std::to_string(*s.code) + (s.reason.empty() ? "" : " (" + s.reason + ")");
  return std::string("<span class=\"pill ") + kind + "\">" + html_escape(text) + "</span>";
}

std::string notices(const RunData& run, bool with_name) {
  std::string items;
  for (const std::string& p : run.problems)
    items += "<li>" + (with_name ? "<b>" + html_escape(run.name) + "</b>: " : "") + html_escape(p) + "</li>";
  return items.empty() ? "" : "<ul class=\"notice\">" + items + "</ul>";
}

std::string header(const RunData& run) {
  std::string out = "<h1>" + html_escape(run.name) + "</h1>" + pill(run);
  std::string line = run.directory;
  if (run.status) {
    if (!run.status->host.empty()) line += " · " + run.status->host;
    if (!run.status->started.empty()) line += " · started " + run.status->started;
    if (!run.status->updated.empty()) line += " · last written " + run.status->updated;
  }
  out += "<p class=\"sub\">" + html_escape(line) + "</p>";
  if (run.status && !run.status->message.empty())
    out += "<ul class=\"notice\"><li>" + html_escape(run.status->message) + "</li></ul>";
  if (!run.facts.empty()) {
    out += "<dl class=\"facts\">";
    for (const auto& [label, value] : run.facts)
      out += "<div><dt>" + html_escape(label) + "</dt><dd>" + html_escape(value) + "</dd></div>";
    out += "</dl>";
  }
  return out;
}

std::string run_section(const RunData& run) {
  std::string out = "<section>" + header(run) + notices(run, false);
  if (!run.steps.empty()) {
    out += tiles(run) + "<div class=\"charts\">" + loss_chart(run);
    out += simple_chart(run, "Gradient norm", "global, before clipping", 4, AxisFormat::kPlain, true, true,
                        [](const StepPoint& p) { return p.grad_norm; });
    out += simple_chart(run, "Learning rate", "", 2, AxisFormat::kScientific, true, false,
                        [](const StepPoint& p) { return p.lr; });
    out += simple_chart(run, "Tokens per second", "", 0, AxisFormat::kCount, true, false,
                        [](const StepPoint& p) { return p.tokens_per_s; });
    out += time_chart(run);
    out += simple_chart(run, "Peak memory", "per rank, since the start", 5, AxisFormat::kBytes, true, false,
                        [](const StepPoint& p) { return p.memory_bytes; });
    const auto scales = column(run, [](const StepPoint& p) { return p.loss_scale; });
    if (std::adjacent_find(scales.begin(), scales.end(), std::not_equal_to<>()) != scales.end()) {
      out += simple_chart(run, "Loss scale", "fp16", 3, AxisFormat::kCount, true, true,
                          [](const StepPoint& p) { return p.loss_scale; });
    }
    out += "</div>" + skipped_table(run) + communication_charts(run) + site_table(run);
  }
  if (!run.config_text.empty()) {
    out += "<h2>Configuration</h2><details><summary>config.resolved.json</summary><pre>" +
           html_escape(run.config_text) + "</pre></details>";
  }
  return out + "</section>";
}

std::string page(const std::string& title, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width,initial-scale=1\">"
         "<title>" +
         html_escape(title) + "</title><style>" + std::string(report_style()) + "</style></head><body><main>\n" + body +
         "<footer>Model FLOP/s count matrix products of forward and backward with the causal half of attention; "
         "recomputation is not counted. "
         "Written by thinwire report.</footer></main><script>" +
         std::string(report_script()) + "</script></body></html>\n";
}

std::string overlay(const std::vector<RunData>& runs, const std::string& title, const std::string& note,
                    AxisFormat format, bool from_zero, bool allow_log, bool smoothed, const Field& y) {
  LineChart chart{
      .title = title, .note = note, .y_format = format, .from_zero = from_zero, .allow_log = allow_log, .series = {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    ChartSeries s = series(runs[i], runs[i].name, static_cast<int>(i), y);
    chart.series.push_back(smoothed && s.x.size() >= kSmoothFrom ? smooth(std::move(s)) : std::move(s));
  }
  return render(chart);
}

std::string compare_table(const std::vector<RunData>& runs) {
  std::string out =
      "<div class=\"scroll wide\"><table><tr><th>run</th><th>state</th><th>steps</th><th>tokens</th><th>train loss</th>"
      "<th>eval loss</th><th>best eval</th><th>tok/s</th><th>step</th><th>TFLOP/s</th><th>MFU</th><th>memory</th>"
      "<th>wire</th><th>exposed</th><th>skipped</th><th>time</th></tr>";
  for (size_t i = 0; i < runs.size(); ++i) {
    const Figures f = figures_of(runs[i]);
    const std::string cells[] = {runs[i].status ? runs[i].status->state : "–",
                                 std::to_string(f.steps),
                                 count_or_dash(f.tokens),
                                 number("%.4f", f.loss),
                                 number("%.4f", f.last_eval),
                                 number("%.4f", f.best_eval),
                                 count_or_dash(f.tokens_per_s),
                                 number("%.4g ms", f.step_ms),
                                 number("%.3g", f.tflops),
                                 number("%.1f %%", f.mfu * 100),
                                 bytes_or_dash(f.memory),
                                 bytes_or_dash(f.wire),
                                 f.wire > 0 ? number("%.4g ms", f.exposed_ms) : "–",
                                 std::to_string(f.skipped),
                                 format_duration(f.hours * 3600)};
    out += "<tr><td class=\"c" + std::to_string(i % 8) + "\"><i></i>" + html_escape(runs[i].name) + "</td>";
    for (const std::string& cell : cells) out += "<td>" + html_escape(cell) + "</td>";
    out += "</tr>";
  }
  return out + "</table></div>";
}

// Facts in which the runs differ, one column per run.
std::string difference_table(const std::vector<RunData>& runs) {
  std::vector<std::string> labels;
  for (const RunData& run : runs) {
    for (const auto& [label, value] : run.facts) {
      if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
    }
  }
  std::string rows;
  for (const std::string& label : labels) {
    std::vector<std::string> values;
    for (const RunData& run : runs) {
      const auto it =
          std::find_if(run.facts.begin(), run.facts.end(), [&](const auto& fact) { return fact.first == label; });
      values.push_back(it == run.facts.end() ? "–" : it->second);
    }
    if (std::all_of(values.begin(), values.end(), [&](const std::string& v) { return v == values.front(); })) continue;
    rows += "<tr><td>" + html_escape(label) + "</td>";
    for (const std::string& v : values) rows += "<td>" + html_escape(v) + "</td>";
    rows += "</tr>";
  }
  if (rows.empty()) return "";
  std::string out = "<h2>What differs</h2><div class=\"scroll\"><table><tr><th>setting</th>";
  for (const RunData& run : runs) out += "<th>" + html_escape(run.name) + "</th>";
  return out + "</tr>" + rows + "</table></div>";
}

}  // namespace

std::string report_page(const std::vector<RunData>& runs) {
  std::string body;
  for (const RunData& run : runs) body += run_section(run);
  return page(runs.size() == 1 ? runs.front().name : std::to_string(runs.size()) + " runs", body);
}

std::string compare_page(const std::vector<RunData>& given) {
  // Two directories may end in the same name: then the whole path tells them apart.
  std::vector<RunData> runs = given;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool twice =
        std::count_if(given.begin(), given.end(), [&](const RunData& r) { return r.name == given[i].name; }) > 1;
    if (twice) runs[i].name = runs[i].directory;
  }
  const auto loss = [](const StepPoint& p) { return p.loss; };
  std::string body = "<section><h1>Comparison of " + std::to_string(runs.size()) + " runs</h1>";
  for (const RunData& run : runs) body += notices(run, true);
  body += "<h2>Key figures</h2>" + compare_table(runs) + "<h2>Curves</h2><div class=\"charts\">";
  body += overlay(runs, "Training loss", "smoothed where a run has 60 steps or more", AxisFormat::kPlain, false, false,
                  true, loss);
  LineChart eval{.title = "Evaluation loss", .series = {}};
  LineChart tokens{
      .title = "Training loss by tokens", .note = "for runs with different batches", .x_label = "tokens", .series = {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    eval.series.push_back(eval_series(runs[i], runs[i].name, static_cast<int>(i)));
    ChartSeries s = series(runs[i], runs[i].name, static_cast<int>(i), loss, Style::kLine,
                           [](const StepPoint& p) { return p.consumed_tokens; });
    const bool placed = std::all_of(s.x.begin(), s.x.end(), [](double x) { return std::isfinite(x); });
    if (placed) tokens.series.push_back(s.x.size() >= kSmoothFrom ? smooth(std::move(s)) : std::move(s));
  }
  body += render(eval) + render(tokens);
  body += overlay(runs, "Gradient norm", "global, before clipping", AxisFormat::kPlain, true, true, false,
                  [](const StepPoint& p) { return p.grad_norm; });
  body += overlay(runs, "Learning rate", "", AxisFormat::kScientific, true, false, false,
                  [](const StepPoint& p) { return p.lr; });
  body += overlay(runs, "Tokens per second", "", AxisFormat::kCount, true, false, true,
                  [](const StepPoint& p) { return p.tokens_per_s; });
  body += overlay(runs, "Peak memory", "per rank", AxisFormat::kBytes, true, false, false,
                  [](const StepPoint& p) { return p.memory_bytes; });
  if (std::any_of(runs.begin(), runs.end(), [](const RunData& r) { return !r.sites.empty(); })) {
    body += overlay(runs, "Wire bytes per step", "rank 0, all sites", AxisFormat::kBytes, true, false, true,
                    [](const StepPoint& p) { return p.wire_bytes; });
    body += overlay(runs, "Exposed communication per step", "rank 0, all sites", AxisFormat::kMilliseconds, true, false,
                    true, [](const StepPoint& p) { return sum_of(p.site_exposed_ms); });
    body += overlay(runs, "Busy communication per step", "rank 0, sum over sites", AxisFormat::kMilliseconds, true,
                    false, true, [](const StepPoint& p) { return sum_of(p.site_busy_ms); });
  }
  body += "</div>" + difference_table(runs) + "</section>";
  return page("Comparison of " + std::to_string(runs.size()) + " runs", body);
}

}  // namespace thinwire
