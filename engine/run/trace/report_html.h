// The report: what it knows about a run, read from the run directory, and one self-contained HTML page about one run or
// several.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/trace/metrics_log.h"
#include "engine/run/trace/status_file.h"

namespace thinwire {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What one site did in a step: bytes sent, time with at least one operation open, the part of it that compute stood
// still; NaN where it was not measured: error of compressed messages against what was put in, and what residuals hold.
struct SiteStep {
  double bytes = 0, busy_ms = 0, exposed_ms = 0, rel_error = kNone, residual_norm = kNone;
};

// Numbers of one line of metrics.jsonl; NaN where the line has null or lacks the key.
struct StepPoint {
  int64_t step = 0;
  double wall_s = kNone, consumed_tokens = 0, loss = 0, lr = 0, grad_norm = 0, loss_scale = 0, step_ms = 0,
         tokens_per_s = 0, tflops = 0, mfu = 0;
  double memory_bytes = 0;
  double wire_bytes = 0, logical_bytes = 0;  // summed over sites
  double wire_bytes_total = 0;               // and over ranks; 0: the line does not say
  bool skipped = false;
  std::string non_finite, skipped_by;  // the first tensor that is not finite; the key that names the step
  double spike_spreads = kNone, spike_median = kNone;  // of a loss that jumped
  std::vector<double> time_ms;                         // by RunData::time_names
  std::vector<SiteStep> sites;                         // by RunData::sites
  double sum(double SiteStep::*field) const;
};

struct EvalPoint {
  int64_t step = 0;
  double loss = 0, perplexity = 0, wall_s = kNone;
  std::vector<double> by_position;  // of equal parts of the sequence, NaN where there was no token; older lines: none
};

// One site over the whole run.
struct SiteTotals {
  std::string site, baseline_dtype;
  double logical_bytes = 0, wire_bytes = 0, encode_ms = 0, decode_ms = 0, busy_ms = 0, exposed_ms = 0;
  double wire_bytes_total = 0;  // of all ranks
  double last_residual_norm = kNone;
  double rel_error() const;  // root of the mean square over the steps that measured it; NaN: none did
  double rel_error_square = 0;
  int64_t rel_errors = 0;
};

// prediction.json: what the planner said of a step before the run. NaN where it does not say.
struct PredictedStep {
  std::string cluster;
  bool ranking_only = false;  // of a machine that was not measured
  double step_ms = kNone, tokens_per_s = kNone, memory_bytes = kNone;
  struct Site {
    std::string site;
    double wire_bytes = kNone, exposed_ms = kNone;  // of rank 0
  };
  std::vector<Site> sites;
};

struct RunData {
  std::string directory, name;
  std::vector<StepPoint> steps;  // ascending; of lines that repeat a step the last counts
  std::vector<EvalPoint> evals;
  std::vector<std::string> time_names;
  std::vector<SiteTotals> sites;
  // Named ranks, each with the last step in which it was; ratio: the largest. In order of their beginning.
  std::vector<std::pair<StragglerRecord, int64_t>> stragglers;
  std::optional<RunStatus> status;
  std::optional<PredictedStep> predicted;                  // of a run that was started with --cluster
  std::string config_text;                                 // config.resolved.json as it is, empty if missing
  std::vector<std::pair<std::string, std::string>> facts;  // label and value for the header, from the config
  double sequence = kNone;                                 // seq_length
  std::string preset;                                      // of compression; empty: the configuration does not say
  std::vector<std::pair<std::string, std::string>> rules;  // site and its codec in words, of sites that have a rule
  std::vector<std::string> problems;                       // what was missing or broken, for a person
};

// Throws Error(kBadData) only when `run_dir` is no directory; a missing or torn file becomes an entry of `problems`.
RunData load_run(const std::string& run_dir);

// What a page that is kept up to date says of that, and after how many seconds it loads itself again (0: never).
struct Following {
  std::string words;
  double reload_s = 0;
};

// A page with a section per run: facts, key figures, charts, bytes per site, the resolved configuration.
std::string report_page(const std::vector<RunData>& runs, const Following& following = {});

// One page with all runs in each chart and a table of key figures. Colours follow the order of `runs`.
std::string compare_page(const std::vector<RunData>& runs);

// Loss or evaluation loss of all runs as an SVG file; "" where no run has such a value. x: "step", "tokens", "wall_s".
std::string loss_picture(const std::vector<RunData>& runs, bool evaluation, const std::string& x);

// `report --draw`, whose JSON docs/programs.md describes. A page, {"title": ..., "parts": [markup or chart, ...]}, or a
// chart as an SVG file of its own, "" where it has nothing to draw. Throws Error(kBadData) where `json` is neither.
std::string draw_document(const std::string& json);

}  // namespace thinwire
