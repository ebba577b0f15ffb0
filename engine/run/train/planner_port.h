// What the program `train` asks of the planner, which stands above this module: engine/run/plan/planner_port.cpp does
// it.
#pragma once

#include <string>

#include "engine/run/config/run_config.h"

namespace thinwire {

struct ClusterShape {
  int ranks = 0, ranks_per_node = 0;
};
// All three throw Error(kBadConfig) for a cluster file that is wrong (docs/planner.md), the two below also for one that
// has fewer ranks than the layout.
ClusterShape cluster_shape(const std::string& cluster_file);
// What `plan` prints for this configuration: the step's time, where it goes, and what each site leaves exposed.
std::string predicted_text(const RunConfig& config, const std::string& cluster_file);
// The line of `plan --json`, for <run_dir>/prediction.json.
std::string predicted_json(const RunConfig& config, const std::string& cluster_file);

}  // namespace thinwire
