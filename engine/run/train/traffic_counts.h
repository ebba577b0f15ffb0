// What sites count over a stretch of work, and work beside the steps, which counts for itself.
#pragma once

#include <array>
#include <functional>

#include "engine/run/train/replica.h"
#include "parallel/channel/channel_compression.h"

namespace thinwire {

struct TrafficCounts {
  std::array<SiteCounters, kSiteNames.size()> sites{};                  // of this rank
  std::array<double, kSiteNames.size()> logical_total{}, wire_total{};  // bytes of all ranks

  void read_totals(const double* sums);  // [kSumCount], summed over the ranks
};

// Moves this rank's counters into `counts` and starts them again at zero; puts its bytes and its non-finite messages
// into buffers().sums, for control.sum. Nothing may be under way. A replica without mesh counts nothing.
void take_counters(Replica& replica, TrafficCounts& counts);
// Adds the time of what control has done since. The sum behind take_counters cannot carry its own bytes, so these count
// for the next step, but whoever waits for it waits within this one.
void take_control_time(Replica& replica, TrafficCounts& counts);
// Adds what device coders have found up to then. Waits for the device; throws Error(kBadData) for a bad payload.
void add_findings(Replica& replica, TrafficCounts& counts);

// Runs forward passes that are no part of a step (an evaluation, a check of weights), all ranks together. The step
// behind them gathers, compresses and counts as if they had not been: residuals and warm starts stay, gathered copies
// are forgotten, and what `body` leaves in the counters is, too.
void run_beside_steps(Replica& replica, const std::function<void()>& body);

}  // namespace thinwire
