// Names ranks that compute much longer than their like, and ranks whose messages keep others waiting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/trace/metrics_log.h"
#include "parallel/sites/control.h"

namespace thinwire {

// What a rank tells of an interval.
struct RankTimes {
  double compute_ms = 0.0, wait_ms = 0.0;  // medians of its steps: without, and in, waits for others
  double awaited = 0.0;                    // votes: steps in which another rank waited for it most, and for long
};

// Ranks of one kind do the same work (`kinds`, by rank: their pipeline stage); those that are alone in theirs are not
// judged. A rank computes too long from `ratio` times the median of its kind on (of two: the shorter), where that is 20
// ms at least. It keeps others waiting with as many votes as half of the `steps`, and twice the median of its kind; not
// if it computes too long, which explains it. `since` is left to the caller.
std::vector<StragglerRecord> judge_times(const std::vector<RankTimes>& times, const std::vector<int>& kinds,
                                         double ratio, int64_t steps);

// Collective: all ranks call it behind every step, and get the same records every `interval` steps. A rank is named
// when two intervals in a row say the same of it.
class StragglerWatch {
 public:
  struct Report {
    std::vector<StragglerRecord> named;    // now
    std::vector<StragglerRecord> changes;  // named for the first time; with ratio 0: not named any more
  };

  // interval 0: nothing is measured. hosts: by rank, may be empty.
  StragglerWatch(int64_t interval, double ratio, std::vector<int> kinds, std::vector<std::string> hosts,
                 Control& control);

  // waited_ns: for each rank (Progress::take_waits). Nothing where ranks were not compared.
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
  std::vector<StragglerRecord> suspected_, named_;  // of the interval before
};

}  // namespace thinwire
