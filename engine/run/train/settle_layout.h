// What a configuration leaves to the machine - which layers a stage takes, how long gathered weights stay - decided by
// rank 0 for all.
#pragma once

#include <array>
#include <optional>

#include "engine/run/config/run_config.h"
#include "engine/run/train/job.h"

namespace thinwire {

// Fills hold, and for pipe_partition_method "time" without pipe_partition_costs the milliseconds of a layer and of the
// head: `known` ones, or as measured here. All ranks call it; afterwards all have the same numbers. Returns these times
// where they were left open.
std::optional<std::array<double, 3>> settle_layout(RunConfig& run, Job& job,
                                                   const std::optional<std::array<double, 3>>& known);

}  // namespace thinwire
