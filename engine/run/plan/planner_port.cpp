// The planner for `train --cluster`.
#include "engine/run/train/planner_port.h"

#include "engine/run/plan/plan_text.h"
#include "engine/run/plan/prediction.h"

namespace thinwire {

ClusterShape cluster_shape(const std::string& cluster_file) {
  const Cluster cluster = read_cluster(cluster_file);
  return {cluster.ranks(), cluster.ranks_per_node};
}

std::string predicted_text(const RunConfig& config, const std::string& cluster_file) {
  const Cluster cluster = read_cluster(cluster_file);
  return prediction_text(config, cluster, predict(config, cluster, {.spans = true}));
}

std::string predicted_json(const RunConfig& config, const std::string& cluster_file) {
  const Cluster cluster = read_cluster(cluster_file);
  return prediction_json(cluster, predict(config, cluster, {.spans = true}), config.command_line) + "\n";
}

}  // namespace thinwire
