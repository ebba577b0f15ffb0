// What a person sees while a run trains: one line per logged step, evaluation lines, and a bar where there is a
// terminal.
#pragma once

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "engine/run/trace/metrics_log.h"

namespace thinwire {

// Human units: "18.4k", "1.2M"; "512 B", "1.2 GiB"; "42s", "5h36m", "3d4h"; "3.0e-4".
std::string format_count(double value);
std::string format_bytes(double bytes);
std::string format_duration(double seconds);
std::string format_scientific(double value);

// `step 120/5000 | loss 3.4121 | gnorm 0.91 | lr 3.0e-4 | 412 ms | 18.4k tok/s | 0.53 TFLOP/s (mfu 41.0%) | mem 1.2 GiB
// | eta 5h36m`. A skipped step says so and names the tensor; a loss scale other than 1 is shown; wire bytes appear when
// a site sent any.
std::string format_step_line(const StepRecord& record, int64_t total_steps, std::optional<double> eta_seconds);
// `eval at step 200 | loss 3.2011 | perplexity 24.56 | 1.2s`.
std::string format_eval_line(const EvalRecord& record);
// `[=====>    ]  50% 120/240 eta 2m10s`, exactly `width` columns wide (at least 40).
std::string format_bar(int64_t step, int64_t total_steps, std::optional<double> eta_seconds, int width);

// Prints to `out` (not owned). On a terminal the bar is redrawn below the lines at most ten times a second.
class ConsoleProgress {
 public:
  // `first_step`: the step after the one that was resumed from. The remaining time is estimated from the steps of this
  // process only.
  // Lines appear every `log_interval` steps, and for the first, the last and every skipped step.
  ConsoleProgress(std::FILE* out, int64_t total_steps, int64_t log_interval, int64_t first_step = 1);
  ~ConsoleProgress();
  ConsoleProgress(const ConsoleProgress&) = delete;
  ConsoleProgress& operator=(const ConsoleProgress&) = delete;

  void step(const StepRecord& record);
  void eval(const EvalRecord& record);
  // Removes the bar; call it before anybody else writes to the same terminal. The next step draws it again.
  void clear_bar();

 private:
  using Clock = std::chrono::steady_clock;
  void print(const std::string& line);
  std::optional<double> eta(int64_t step) const;

  std::FILE* out_;
  bool terminal_;
  bool bar_shown_ = false;
  int64_t total_steps_, log_interval_, first_step_;
  std::optional<Clock::time_point> last_step_, last_bar_;
  double seconds_per_step_ = 0.0;  // moving mean of wall time between steps, so it includes evaluation and saving
  int64_t timed_steps_ = 0;
};

}  // namespace thinwire
