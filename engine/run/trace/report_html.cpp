// Puts the page together: which figures and charts, in which order, and the words around them.
#include "engine/run/trace/report_html.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <string_view>

#include "engine/run/trace/console_progress.h"
#include "engine/run/trace/report_parts.h"
#include "engine/run/trace/svg_chart.h"

namespace thinwire {
namespace {

using namespace report;
using Style = ChartSeries::Style;

std::string tile(const std::string& value, const std::string& label, const std::string& detail = "") {
  return "<div class=\"tile\"><span>" + html_escape(label) + "</span><b>" + html_escape(value) + "</b>" +
         (detail.empty() ? "" : "<em>" + html_escape(detail) + "</em>") + "</div>";
}

std::string tiles(const RunData& run) {
  const Figures f = figures_of(run);
  std::string out = "<div class=\"tiles\">";
  const int64_t planned = run.status ? run.status->total_steps : 0;
  if (!run.steps.empty()) {
    out += tile(std::to_string(f.steps) + (planned > 0 ? " / " + std::to_string(planned) : ""), "steps",
                count_or_dash(f.tokens) + " tokens");
    out += tile(number("%.4f", f.loss), "training loss", "mean of the last steps");
  }
  if (!run.evals.empty()) {
    out += tile(number("%.4f", f.last_eval), "evaluation loss",
                std::isfinite(f.best_eval)
                    ? "best " + number("%.4f", f.best_eval) + " at step " + std::to_string(f.best_eval_step)
                    : "none was finite");
    out += tile(number("%.4g", f.perplexity), "perplexity", "at the last evaluation");
  }
  if (run.steps.empty()) return out + "</div>";  // a run that evaluates and does not train
  out += tile(count_or_dash(f.tokens_per_s), "tokens per second", "median");
  out += tile(ms_text(f.step_ms), "time per step", "median; 95 % within " + ms_text(f.step_ms_p95));
  out += tile(number("%.3g", f.tflops), "model TFLOP/s per rank",
              std::isfinite(f.mfu) ? "MFU " + number("%.1f %%", f.mfu * 100) : "peak not stated, no MFU");
  out += tile(bytes_or_dash(f.memory), "peak memory", "rank 0");
  if (f.wire > 0)
    out += tile(format_bytes(f.wire), "sent over the wire",
                f.logical > 1.005 * f.wire ? number("%.2f", f.logical / f.wire) + " times less than uncompressed"
                                           : "rank 0, uncompressed");
  std::set<std::string_view> why;
  for (const StepPoint& p : run.steps) {
    if (!p.skipped) continue;
    why.insert(!p.skipped_by.empty()         ? "named by iterations_to_skip"
               : std::isnan(p.spike_spreads) ? "non-finite gradients"
                                             : "losses that jumped");
  }
  out += tile(std::to_string(f.skipped), "skipped steps",
              why.empty()       ? "all numbers finite"
              : why.size() == 1 ? std::string(*why.begin())
                                : "why is said below");
  out += tile(format_duration(f.hours * 3600), "time in steps");
  return out + "</div>";
}

ChartSeries skipped_series(const RunData& run, const Axis& axis) {
  ChartSeries s{"skipped step", Style::kMarks, 0, {}, {}};
  for (const StepPoint& p : run.steps) {
    if (!p.skipped) continue;
    s.x.push_back(axis.step(p));
    s.y.push_back(kNone);
  }
  return s;
}

std::string loss_chart(const RunData& run, const std::string& x) {
  const Axis axis = axis_of(x, std::span<const RunData>(&run, 1));
  LineChart chart{
      .title = "Loss" + axis.of_title, .note = "cross entropy per token, natural logarithm", .x_label = axis.label};
  const ChartSeries raw = series(run, "training", 0, &StepPoint::loss, Style::kLine, axis.step);
  if (!is_placed(raw)) return "";
  if (raw.x.size() >= kSmoothFrom) {
    ChartSeries faint = raw;
    faint.style = Style::kFaintLine;
    ChartSeries mean = smooth(raw);
    mean.name = "training, smoothed";
    chart.series = {faint, mean};
  } else {
    chart.series = {raw};
  }
  if (!run.evals.empty()) chart.series.push_back(eval_series(run, "evaluation", 1, axis));
  const ChartSeries skipped = skipped_series(run, axis);
  if (!skipped.x.empty()) chart.series.push_back(skipped);
  return render(chart);
}

// Of the first evaluation and of the last; nothing in front of the first and where lines have no positions.
std::string position_chart_of(const RunData& run) {
  if (run.evals.empty() || run.evals.back().by_position.empty()) return "";
  LineChart chart = position_chart({&run, 1});
  const auto add = [&](const EvalPoint& e, int color, Style style) {
    chart.series.push_back(position_series(run, e, "step " + std::to_string(e.step), color, style));
  };
  if (run.evals.size() > 1 && !run.evals.front().by_position.empty()) add(run.evals.front(), 7, Style::kFaintLine);
  add(run.evals.back(), 1, Style::kLine);
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
                    .note =
                        "mean per step; the rest is time that no part claims; evaluation and checkpoint: between this "
                        "step and the one before",
                    .parts = run.time_names};
  const size_t parts = run.time_names.size(), n = run.steps.size();
  if (parts == 0) return render(chart);
  chart.parts.push_back("rest");
  std::vector<std::vector<double>> rest(n);
  for (size_t i = 0; i < n; ++i) {
    rest[i] = run.steps[i].time_ms;
    double claimed = 0;
    for (size_t k = 0; k < rest[i].size(); ++k) {
      const bool between = run.time_names[k] == "evaluation" || run.time_names[k] == "checkpoint";
      if (!between) claimed += rest[i][k];
    }
    const double step_ms = run.steps[i].step_ms;
    rest[i].push_back(std::isfinite(step_ms) ? std::max(0.0, step_ms - claimed) : 0.0);
  }
  fill_bars(run, chart, [&](size_t step, size_t part) { return rest[step][part]; });
  return render(chart);
}

using SiteColumn = double SiteStep::*;

std::string site_bars(const RunData& run, const std::string& title, const std::string& note, AxisFormat format,
                      SiteColumn column) {
  StackedBars chart{.title = title, .note = note, .format = format};
  for (const SiteTotals& s : run.sites) chart.parts.push_back(s.site);
  fill_bars(run, chart, [&](size_t step, size_t part) { return run.steps[step].sites[part].*column; });
  return render(chart);
}

// One bar per site, in two parts: means per step.
std::string halves(const RunData& run, const std::string& title, const std::string& note, AxisFormat format,
                   const std::vector<std::string>& parts,
                   const std::function<std::pair<double, double>(const SiteTotals&)>& value) {
  RowChart chart{.title = title, .format = format, .parts = parts};
  for (const SiteTotals& s : run.sites) {
    const auto [first, second] = value(s);
    chart.rows.push_back(
        {.label = s.site, .values = {per_step(run, std::max(0.0, first)), per_step(run, std::max(0.0, second))}});
  }
  return render(chart, note);
}

// A curve per site that has one finite value at least.
std::string site_lines(const RunData& run, const std::string& title, const std::string& note, SiteColumn column) {
  LineChart chart{.title = title, .note = note, .from_zero = true, .allow_log = true};
  for (size_t i = 0; i < run.sites.size(); ++i) {
    ChartSeries s =
        series(run, run.sites[i].site, static_cast<int>(i), [&](const StepPoint& p) { return p.sites[i].*column; });
    // Steps that measured nothing are left out: a sampled error is a curve, not a row of dots.
    ChartSeries measured = s;
    measured.x.clear(), measured.y.clear();
    for (size_t k = 0; k < s.y.size(); ++k)
      if (std::isfinite(s.y[k])) measured.x.push_back(s.x[k]), measured.y.push_back(s.y[k]);
    if (!measured.x.empty()) chart.series.push_back(std::move(measured));
  }
  if (chart.series.size() == 1) chart.note = chart.series.front().name + ", " + chart.note;
  return chart.series.empty() ? "" : render(chart);
}

// What communication costs: bytes, time on the wire, and the part of it that compute had to wait for.
std::string communication_charts(const RunData& run) {
  if (run.sites.empty()) return "";
  std::string out = "<h2>Communication</h2><div class=\"charts\">";
  out += halves(run, "Bytes by site", "rank 0, mean per step; both parts together: uncompressed in the baseline dtype",
                AxisFormat::kBytes, {"sent", "saved"},
                [](const SiteTotals& s) { return std::pair(s.wire_bytes, s.logical_bytes - s.wire_bytes); });
  out += halves(run, "Time by site", "rank 0, mean per step; both parts together: an operation was under way",
                AxisFormat::kTime, {"exposed", "hidden under compute"},
                [](const SiteTotals& s) { return std::pair(s.exposed_ms, s.busy_ms - s.exposed_ms); });
  out += site_bars(run, "Bytes sent per step", "rank 0, by site, mean", AxisFormat::kBytes, &SiteStep::bytes);
  out += site_bars(run, "Exposed per step", "rank 0: time that compute stood still for a site", AxisFormat::kTime,
                   &SiteStep::exposed_ms);
  out +=
      site_bars(run, "Busy per step", "rank 0: time with an operation of the site under way; sites overlap each other",
                AxisFormat::kTime, &SiteStep::busy_ms);
  LineChart chart{
      .title = "Exposed communication against the step",
      .note = "rank 0, all sites; what lies between is hidden under compute or compute itself",
      .y_format = AxisFormat::kTime,
      .from_zero = true,
  };
  chart.series.push_back(series(run, "step", 7, &StepPoint::step_ms));
  chart.series.push_back(series(run, "exposed", 1, [](const StepPoint& p) { return p.sum(&SiteStep::exposed_ms); }));
  out += render(chart);
  out += site_lines(run, "Relative error of coded messages", "rank 0, by site; of decoded against what was put in",
                    &SiteStep::rel_error);
  out += site_lines(run, "Norm of residuals", "rank 0, by site; what compression still owes", &SiteStep::residual_norm);
  return out + "</div>";
}

// A line per site: what went into it and out of it over the run, and what that costs in a step.
std::string site_table(const RunData& run) {
  if (run.sites.empty()) return "";
  std::string rows;
  for (const SiteTotals& s : run.sites) {
    const auto rule =
        std::find_if(run.rules.begin(), run.rules.end(), [&](const auto& r) { return r.first == s.site; });
    const auto ms = [&](double whole) { return ms_text(per_step(run, whole)); };
    const std::vector<std::string> cells = {
        format_bytes(s.logical_bytes),
        format_bytes(s.wire_bytes),
        s.wire_bytes > 0 && s.logical_bytes > 0 ? number("%.2f", s.logical_bytes / s.wire_bytes) : "–",
        s.baseline_dtype.empty() ? "–" : s.baseline_dtype,
        bytes_or_dash(s.wire_bytes_total),
        ms(s.encode_ms),
        ms(s.decode_ms),
        ms(s.busy_ms),
        ms(s.exposed_ms),
        number("%.0f %%", s.busy_ms > 0 ? 100 * std::max(0.0, 1 - s.exposed_ms / s.busy_ms) : kNone),
        number("%.3g", s.rel_error()),
        number("%.3g", s.last_residual_norm)};
    const std::string words = html_escape(rule == run.rules.end() ? "as it is" : rule->second);
    rows += row(html_escape(s.site), cells, "", "<td class=\"words\">" + words + "</td>");
  }
  return "<h2>Sites over the whole run</h2>" +
         table("scroll wide",
               {"site", "logical", "wire", "ratio", "baseline", "all ranks", "encode", "decode", "busy", "exposed",
                "hidden", "relative error", "residual norm", "compression"},
               rows) +
         "<p class=\"sub\">Bytes of rank 0 over the whole run (logical: the same collectives uncompressed in the "
         "baseline dtype); times: mean per step; relative error: root mean square over the steps that measured it; "
         "residual norm: of the last step.</p>";
}

// What the planner said beside what was measured; sites that only one of the two knows have a dash.
std::string prediction_table(const RunData& run) {
  if (!run.predicted) return "";
  const PredictedStep& p = *run.predicted;
  const Figures f = figures_of(run);
  const auto off = [](double predicted, double measured) {
    return number("%+.1f %%", measured > 0 ? 100 * (predicted / measured - 1) : kNone);
  };
  std::string rows;
  rows += row("time per step", {ms_text(p.step_ms), ms_text(f.step_ms), off(p.step_ms, f.step_ms)});
  rows += row("tokens per second",
              {count_or_dash(p.tokens_per_s), count_or_dash(f.tokens_per_s), off(p.tokens_per_s, f.tokens_per_s)});
  rows += row("peak memory (predicted: of the rank with most; measured: of rank 0)",
              {bytes_or_dash(p.memory_bytes), bytes_or_dash(f.memory), off(p.memory_bytes, f.memory)});
  std::vector<PredictedStep::Site> sites = p.sites;
  for (const SiteTotals& s : run.sites) {
    const bool known = std::any_of(sites.begin(), sites.end(), [&](const auto& k) { return k.site == s.site; });
    if (!known && s.wire_bytes > 0) sites.push_back({s.site, kNone, kNone});
  }
  for (const PredictedStep::Site& site : sites) {
    const auto measured =
        std::find_if(run.sites.begin(), run.sites.end(), [&](const SiteTotals& s) { return s.site == site.site; });
    const auto mean = [&](double SiteTotals::*sum) {
      return measured == run.sites.end() ? kNone : per_step(run, (*measured).*sum);
    };
    const double bytes = mean(&SiteTotals::wire_bytes), exposed = mean(&SiteTotals::exposed_ms);
    rows += row(html_escape(site.site) + ", bytes per step",
                {bytes_or_dash(site.wire_bytes), bytes_or_dash(bytes), off(site.wire_bytes, bytes)});
    rows += row(html_escape(site.site) + ", exposed",
                {ms_text(site.exposed_ms), ms_text(exposed), off(site.exposed_ms, exposed)});
  }
  return "<h2>Predicted and measured</h2>" +
         table("scroll", {"", "predicted", "measured", "predicted against measured"}, rows) +
         "<p class=\"sub\">Predicted by <code>plan</code> for " + html_escape(p.cluster) +
         (p.ranking_only ? ", a machine that was not calibrated: for comparing predictions, not clocks" : "") +
         ". Step and tokens: median; sites: rank 0, mean over the steps.</p>";
}

// The first twenty steps of which `cells` has something to say.
std::string step_table(const RunData& run, const std::string& title, const std::vector<std::string>& head,
                       const std::function<std::vector<std::string>(const StepPoint&)>& cells) {
  constexpr int kShown = 20;
  std::string rows;
  int64_t count = 0;
  for (const StepPoint& p : run.steps)
    if (const std::vector<std::string> said = cells(p); !said.empty() && ++count <= kShown)
      rows += row(std::to_string(p.step), said);
  if (rows.empty()) return "";
  const std::string more = count > kShown ? "<p class=\"sub\">and " + std::to_string(count - kShown) + " more</p>" : "";
  return "<h2>" + title + "</h2>" + table("scroll", head, rows) + more;
}

std::string skipped_table(const RunData& run) {
  using Cells = std::vector<std::string>;
  return step_table(run, "Skipped steps", {"step", "first non-finite tensor", "loss scale"}, [](const StepPoint& p) {
    if (!p.skipped || !std::isnan(p.spike_spreads)) return Cells();
    const std::string first = p.skipped_by.empty() ? p.non_finite : "none: " + p.skipped_by;
    return Cells{first.empty() ? "–" : first, number("%g", p.loss_scale)};
  });
}

std::string spike_table(const RunData& run) {
  using Cells = std::vector<std::string>;
  return step_table(run, "Losses that jumped", {"step", "loss", "median before", "spreads above it", "update"},
                    [](const StepPoint& p) {
                      if (std::isnan(p.spike_spreads)) return Cells();
                      return Cells{number("%.4f", p.loss), number("%.4f", p.spike_median),
                                   number("%.1f", p.spike_spreads), p.skipped ? "skipped" : "applied"};
                    });
}

std::string straggler_list(const RunData& run) {
  std::string out;
  for (const auto& [record, last] : run.stragglers)
    out += "<p class=\"sub\">" + html_escape(text_of(record)) + ", last seen in step " + std::to_string(last) + "</p>";
  return out.empty() ? out : "<h2>Slow ranks</h2>" + out;
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
  if (run.steps.empty() && !run.evals.empty())
    out += tiles(run) + "<div class=\"charts\">" + position_chart_of(run) + "</div>";
  if (!run.steps.empty()) {
    const std::span<const RunData> one(&run, 1);
    out += tiles(run) + "<div class=\"charts\">" + loss_chart(run, "step") + loss_chart(run, "wall_s") +
           position_chart_of(run);
    out += overlay(one,
                   {.title = "Gradient norm", .note = "global, before clipping", .from_zero = true, .allow_log = true},
                   &StepPoint::grad_norm, false, {}, 4);
    out += overlay(one, {.title = "Learning rate", .y_format = AxisFormat::kScientific, .from_zero = true},
                   &StepPoint::lr, false, {}, 2);
    out += overlay(one, {.title = "Tokens per second", .from_zero = true}, &StepPoint::tokens_per_s, false, {}, 0);
    out += time_chart(run);
    out += overlay(
        one,
        {.title = "Peak memory", .note = "rank 0, since the start", .y_format = AxisFormat::kBytes, .from_zero = true},
        &StepPoint::memory_bytes, false, {}, 5);
    const auto scales = column(run, &StepPoint::loss_scale);
    if (std::adjacent_find(scales.begin(), scales.end(), std::not_equal_to<>()) != scales.end()) {
      out += overlay(one, {.title = "Loss scale", .note = "fp16", .from_zero = true, .allow_log = true},
                     &StepPoint::loss_scale, false, {}, 3);
    }
    out += "</div>" + prediction_table(run) + skipped_table(run) + spike_table(run) + straggler_list(run) +
           communication_charts(run) + site_table(run);
  }
  if (!run.config_text.empty()) {
    out += "<h2>Configuration</h2><details><summary>config.resolved.json</summary><pre>" +
           html_escape(run.config_text) + "</pre></details>";
  }
  return out + "</section>";
}

}  // namespace

std::string report_page(const std::vector<RunData>& runs, const Following& following) {
  std::string body;
  for (const RunData& run : runs) body += run_section(run);
  return run_page(runs.size() == 1 ? runs.front().name : std::to_string(runs.size()) + " runs", body, following);
}

}  // namespace thinwire
