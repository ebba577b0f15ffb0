// The page that compares runs: all of them in each chart and table; the first is the baseline.
#include <algorithm>
#include <cmath>

#include "engine/run/trace/console_progress.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/report_parts.h"

namespace thinwire {
namespace {

using namespace report;
using Style = ChartSeries::Style;

bool knows_all_ranks(const RunData& run) {
  return std::any_of(run.steps.begin(), run.steps.end(), [](const StepPoint& p) { return p.wire_bytes_total > 0; });
}

// Bytes sent up to each step: by all ranks, or by rank 0 alone.
std::function<std::vector<double>(const RunData&)> bytes_so_far(bool all_ranks) {
  return [all_ranks](const RunData& run) {
    double sum = 0.0;
    return column(run, [&](const StepPoint& p) { return sum += all_ranks ? p.wire_bytes_total : p.wire_bytes; });
  };
}

std::string times(double value, double of_first) {
  return std::isfinite(value) && of_first > 0 ? number("%.3g", value / of_first) + "x" : "–";
}

std::string compare_table(const std::vector<RunData>& runs) {
  std::string rows;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Figures f = figures_of(runs[i]);
    const std::vector<std::string> cells = {runs[i].status ? runs[i].status->state : "–",
                                            std::to_string(f.steps),
                                            count_or_dash(f.tokens),
                                            number("%.4f", f.loss),
                                            number("%.4f", f.last_eval),
                                            number("%.4f", f.best_eval),
                                            count_or_dash(f.tokens_per_s),
                                            ms_text(f.step_ms),
                                            number("%.3g", f.tflops),
                                            number("%.1f %%", f.mfu * 100),
                                            bytes_or_dash(f.memory),
                                            bytes_or_dash(f.wire),
                                            f.wire > 0 ? ms_text(f.exposed_ms) : "–",
                                            std::to_string(f.skipped),
                                            format_duration(f.hours * 3600)};
    rows += row("<i></i>" + html_escape(runs[i].name), cells, color_class(static_cast<int>(i)));
  }
  return table("scroll wide",
               {"run", "state", "steps", "tokens", "train loss", "eval loss", "best eval", "tok/s", "step", "TFLOP/s",
                "MFU", "memory", "wire", "exposed", "skipped", "time"},
               rows);
}

// The evaluation loss over the baseline's, in percent, at the last step that both have evaluated; names the step unless
// it is the last one of both, as where one run was cut off or still goes on.
std::string gap_at_same_step(const RunData& run, const RunData& baseline) {
  for (auto e = run.evals.rbegin(); e != run.evals.rend(); ++e) {
    const auto same = std::find_if(baseline.evals.begin(), baseline.evals.end(),
                                   [&](const EvalPoint& b) { return b.step == e->step; });
    if (same == baseline.evals.end() || !std::isfinite(e->loss) || !std::isfinite(same->loss)) continue;
    const bool last = e == run.evals.rbegin() && same + 1 == baseline.evals.end();
    return number("%+.2f %%", 100 * (e->loss / same->loss - 1)) +
           (last ? "" : " (at step " + std::to_string(e->step) + ")");
  }
  return "–";
}

// What compression costs in loss and buys in bytes and time. The first run is the baseline of the columns "of first".
std::string compression_table(const std::vector<RunData>& runs, bool all_ranks) {
  std::string rows;
  const auto sent = [&](const Figures& f) { return all_ranks ? f.wire_total : f.wire; };
  const Figures first = figures_of(runs.front());
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    const Figures f = figures_of(run);
    double codec_ms = 0.0;
    for (const SiteTotals& s : run.sites) codec_ms += s.encode_ms + s.decode_ms;
    const std::string off = gap_at_same_step(run, runs.front());
    const std::vector<std::string> cells = {
        run.preset.empty() ? "–" : run.preset,
        number("%.4f", f.last_eval),
        i == 0 ? "baseline" : off,
        bytes_or_dash(sent(f)),
        bytes_or_dash(per_step(run, sent(f))),
        sent(first) > 0 ? times(per_step(run, sent(f)), per_step(runs.front(), sent(first))) : "–",
        f.wire > 0 ? number("%.2f", f.logical / f.wire) : "–",
        f.wire > 0 ? ms_text(f.exposed_ms) : "–",
        f.wire > 0 ? ms_text(per_step(run, codec_ms)) : "–",
        count_or_dash(f.tokens_per_s),
        times(f.tokens_per_s, first.tokens_per_s)};
    rows += row("<i></i>" + html_escape(run.name), cells, color_class(static_cast<int>(i)));
  }
  return "<h2>Compression</h2>" +
         table("scroll wide",
               {"run", "preset", "eval loss", "against first", "bytes sent", "per step", "of first", "wire ratio",
                "exposed per step", "encode + decode", "tok/s", "of first"},
               rows) +
         "<p class=\"sub\">Bytes " + (all_ranks ? "of all ranks" : "of rank 0") +
         " over the whole run; wire ratio: the same collectives uncompressed, in the run's own baseline dtype, over "
         "what was sent (rank 0); exposed: median, rank 0; tokens per second: median.</p>";
}

// A table of named texts (`words`), one row per name, one column per run; `missing` where a run lacks the name. all:
// with the rows in which all runs agree.
std::string words_table(const std::vector<RunData>& runs, const std::string& title, const std::string& style,
                        const std::string& first, std::vector<std::pair<std::string, std::string>> RunData::*words,
                        const std::string& missing, bool all) {
  std::vector<std::string> head = {first}, names;
  for (const RunData& run : runs) {
    head.push_back(run.name);
    for (const auto& [name, text] : run.*words)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string rows;
  for (const std::string& name : names) {
    std::vector<std::string> cells;
    for (const RunData& run : runs) {
      const auto& said = run.*words;
      const auto found = std::find_if(said.begin(), said.end(), [&](const auto& pair) { return pair.first == name; });
      cells.push_back(found == said.end() ? missing : found->second);
    }
    if (all || std::any_of(cells.begin(), cells.end(), [&](const std::string& c) { return c != cells.front(); }))
      rows += row(html_escape(name), cells);
  }
  return rows.empty() ? "" : "<h2>" + title + "</h2>" + table(style, head, rows);
}

std::string speed_bars(const std::vector<RunData>& runs) {
  RowChart chart{.title = "Tokens per second"};
  for (const RunData& run : runs)
    chart.rows.push_back(
        {.label = run.name, .value = figures_of(run).tokens_per_s, .color = static_cast<int>(chart.rows.size())});
  return render(chart, "median over steps");
}

// One bar per run, one part of it per site: `field`, as a mean per step.
std::string site_bars(const std::vector<RunData>& runs, const std::string& title, const std::string& note,
                      AxisFormat format, double SiteTotals::*field) {
  RowChart chart{.title = title, .format = format};
  for (const RunData& run : runs) {
    for (const SiteTotals& s : run.sites)
      if (std::find(chart.parts.begin(), chart.parts.end(), s.site) == chart.parts.end()) chart.parts.push_back(s.site);
  }
  for (const RunData& run : runs) {
    ChartRow row{.label = run.name, .values = std::vector<double>(chart.parts.size(), 0.0)};
    for (const SiteTotals& s : run.sites) {
      const auto at = std::find(chart.parts.begin(), chart.parts.end(), s.site) - chart.parts.begin();
      const double mean = per_step(run, s.*field);
      row.values[static_cast<size_t>(at)] = std::isfinite(mean) ? std::max(0.0, mean) : 0.0;
    }
    chart.rows.push_back(std::move(row));
  }
  return render(chart, note);
}

// Runs whose directories end in the same name are called by the whole path.
std::vector<RunData> told_apart(const std::vector<RunData>& given) {
  std::vector<RunData> runs = given;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool twice =
        std::count_if(given.begin(), given.end(), [&](const RunData& r) { return r.name == given[i].name; }) > 1;
    if (twice) runs[i].name = runs[i].directory;
  }
  return runs;
}

}  // namespace

std::string loss_picture(const std::vector<RunData>& given, bool evaluation, const std::string& x) {
  const std::vector<RunData> runs = told_apart(given);
  const Axis axis = axis_of(x, runs);
  LineChart chart{.title = evaluation ? "Evaluation loss" : "Training loss",
                  .x_label = axis.label,
                  .names = LineChart::Names::kEnds};
  bool smoothed = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int color = static_cast<int>(i);
    ChartSeries s = evaluation ? eval_series(runs[i], runs[i].name, color, axis)
                               : series(runs[i], runs[i].name, color, &StepPoint::loss, Style::kLine, axis.step);
    if (!is_placed(s)) continue;
    const bool mean = !evaluation && s.x.size() >= kSmoothFrom;
    smoothed = smoothed || mean;
    s.style = Style::kLine;
    s.shape = color;
    chart.series.push_back(mean ? smooth(std::move(s)) : std::move(s));
  }
  return as_file(draw(chart), chart.title + axis.of_title, smoothed ? "smoothed where a run has 60 steps or more" : "");
}

std::string compare_page(const std::vector<RunData>& given) {
  const std::vector<RunData> runs = told_apart(given);
  const auto silent = [](const RunData& run) { return run.sites.empty(); };
  const bool any_sites = !std::all_of(runs.begin(), runs.end(), silent);
  const bool all_ranks =
      std::all_of(runs.begin(), runs.end(), [&](const RunData& r) { return silent(r) || knows_all_ranks(r); });
  std::string body = "<section><h1>Comparison of " + std::to_string(runs.size()) + " runs</h1>";
  for (const RunData& run : runs) body += notices(run, true);
  body += "<h2>Key figures</h2>" + compare_table(runs);
  if (any_sites) body += compression_table(runs, all_ranks);
  body += "<h2>Curves</h2><div class=\"charts\">";
  body += overlay(runs, {.title = "Training loss", .note = "smoothed where a run has 60 steps or more"},
                  &StepPoint::loss, true);
  body += overlay(runs,
                  {.title = "Training loss by tokens", .note = "for runs with different batches", .x_label = "tokens"},
                  &StepPoint::loss, true, along(axis_of("tokens", runs)));
  const Axis clock = axis_of("wall_s", runs);
  body +=
      overlay(runs, {.title = "Training loss by time", .note = "wall clock, restarts included", .x_label = clock.label},
              &StepPoint::loss, true, along(clock));
  if (any_sites) {
    body += overlay(runs,
                    {.title = "Training loss by bytes sent",
                     .note = all_ranks ? "all ranks, all sites" : "rank 0, all sites",
                     .x_label = "bytes",
                     .x_format = AxisFormat::kBytes},
                    &StepPoint::loss, true, bytes_so_far(all_ranks));
  }
  for (const char* x : {"step", "wall_s"}) {
    const Axis axis = axis_of(x, runs);
    LineChart eval{.title = "Evaluation loss" + axis.of_title, .x_label = axis.label};
    for (size_t i = 0; i < runs.size(); ++i)
      eval.series.push_back(eval_series(runs[i], runs[i].name, static_cast<int>(i), axis));
    body += render(eval);
  }
  LineChart positions = position_chart(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].evals.empty() || runs[i].evals.back().by_position.empty()) continue;
    positions.series.push_back(position_series(runs[i], runs[i].evals.back(), runs[i].name, static_cast<int>(i)));
  }
  if (!positions.series.empty()) body += render(positions);
  body += speed_bars(runs);
  if (any_sites) {
    body +=
        site_bars(runs, "Bytes sent per step", "by site, mean, rank 0", AxisFormat::kBytes, &SiteTotals::wire_bytes);
    body += site_bars(runs, "Exposed per step", "time that compute stood still, by site, mean, rank 0",
                      AxisFormat::kTime, &SiteTotals::exposed_ms);
  }
  body += overlay(runs, {.title = "Tokens per second over the run", .from_zero = true}, &StepPoint::tokens_per_s, true);
  body +=
      overlay(runs, {.title = "Gradient norm", .note = "global, before clipping", .from_zero = true, .allow_log = true},
              &StepPoint::grad_norm);
  body +=
      overlay(runs, {.title = "Learning rate", .y_format = AxisFormat::kScientific, .from_zero = true}, &StepPoint::lr);
  body += overlay(runs, {.title = "Peak memory", .note = "rank 0", .y_format = AxisFormat::kBytes, .from_zero = true},
                  &StepPoint::memory_bytes);
  if (any_sites) {
    body += overlay(
        runs,
        {.title = "Exposed communication per step",
         .note = "rank 0, all sites",
         .y_format = AxisFormat::kTime,
         .from_zero = true},
        [](const StepPoint& p) { return p.sum(&SiteStep::exposed_ms); }, true);
    body += overlay(
        runs,
        {.title = "Busy communication per step",
         .note = "rank 0, sum over sites",
         .y_format = AxisFormat::kTime,
         .from_zero = true},
        [](const StepPoint& p) { return p.sum(&SiteStep::busy_ms); }, true);
  }
  body += "</div>" +
          words_table(runs, "What each site sends", "scroll words", "site", &RunData::rules, "as it is", true) +
          words_table(runs, "What differs", "scroll", "setting", &RunData::facts, "–", false) + "</section>";
  return run_page("Comparison of " + std::to_string(runs.size()) + " runs", body);
}

}  // namespace thinwire
