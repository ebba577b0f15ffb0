// Names ranks that compute much longer than others of their pipeline stage, and ranks that keep others waiting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/trace/metrics_log.h"
#include "parallel/sites/control.h"

namespace thinwire {

// One rank over one interval.
struct RankTimes {
  double compute_ms = 0.0, wait_ms = 0.0;  // medians over steps: of the step without its waits, and of those waits
  double awaited = 0.0;                    // votes: one per step and rank that waited for this one most, and for long
};

// Which ranks are stragglers. `kinds`: by rank, its pipeline stage; ranks of one kind do the same work and are
// compared, a rank that is alone in its kind is not. The median of a kind is the lower one for an even number of ranks.
// - A rank computes too long if its compute time is at least `ratio` times the median of its kind, and 20 ms above it.
// - Else it keeps others waiting if it has at least steps / 2 votes, and twice the median of its kind.
// Leaves `host` and `since` of the records to the caller.
std::vector<StragglerRecord> judge_times(const std::vector<RankTimes>& times, const std::vector<int>& kinds,
                                         double ratio, int64_t steps);

// Collective: all ranks call after_step() after every step, and get the same records every `interval` steps. A rank is
// named when it was a straggler of the same sort in two intervals in a row.
class StragglerWatch {
 public:
  struct Report {
    std::vector<StragglerRecord> named;    // now
    std::vector<StragglerRecord> changes;  // named for the first time; with ratio 0: not named any more
  };

  // interval 0: nothing is measured. hosts: by rank, may be empty.
  StragglerWatch(int64_t interval, double ratio, std::vector<int> kinds, std::vector<std::string> hosts,
                 Control& control);

  // step_ms, wait_ms: this rank's step, and its waits for others in it. waited_ns: those by the rank that was waited
  // for (Progress::take_waits). nullopt after a step that ends no interval.
  std::optional<Report> after_step(int64_t step, double step_ms, double wait_ms, const std::vector<int64_t>& waited_ns);

 private:
  std::vector<RankTimes> gather();

  int64_t interval_;
  double ratio_;
  std::vector<int> kinds_;
  std::vector<std::string> hosts_;
  Control* control_;
  std::vector<double> compute_ms_, wait_ms_, votes_;
  int64_t first_step_ = 0;
  std::vector<StragglerRecord> suspected_, named_;  // of the last interval
};

}  // namespace thinwire
