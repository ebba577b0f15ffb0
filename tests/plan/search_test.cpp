// The search: its order, its bounds, its memory limit, and that a slow network makes compression win.
#include "engine/run/plan/search.h"

#include <gtest/gtest.h>

#include "engine/run/config/load_config.h"
#include "engine/run/config/named_shapes.h"

namespace thinwire::search_test {
namespace {

Cluster two_nodes(double gbps) {
  Cluster c;
  c.nodes = 2, c.ranks_per_node = 2;
  c.links[1].gbps = gbps;
  c.machine.cores = 2;
  c.machine.flops = 1e11, c.machine.bytes_per_second = 1e10, c.machine.sum_bytes_per_second = 1e10;
  c.machine.any_codec = {2e9, 2e9};
  return c;
}

RunConfig config_of(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = shape_overrides("tiny");
  for (const char* rest : {"train_iters=8", "optimizer.params.lr=1e-4", "lr_decay_style=constant", "warmup=0",
                           "threads_per_rank=1", "train_batch_size=64"})
    overrides.emplace_back(rest);
  overrides.insert(overrides.end(), more.begin(), more.end());
  ConfigOptions options;
  options.ranks = 4, options.found_ranks_per_node = 2, options.dry_run = true;
  return load_config({}, overrides, options).run;
}

TEST(Search, OrdersWithinBoundsAndMemory) {
  const Cluster cluster = two_nodes(1.0);
  const SearchResult r = search(config_of, cluster, {"none", "bf16_wire"});
  ASSERT_EQ(r.best.size(), 10u);
  EXPECT_EQ(r.candidates, r.refused + r.too_large + r.pruned + r.simulated);
  for (size_t i = 0; i < r.best.size(); ++i) {
    EXPECT_GE(r.best[i].prediction.step_ms, r.best[i].bound_ms) << r.best[i].words;  // else pruning could lose it
    if (i > 0) {
      EXPECT_GE(r.best[i].prediction.step_ms, r.best[i - 1].prediction.step_ms);
    }
  }
  Cluster small = cluster;
  small.memory_per_rank = 0.9 * r.best[0].prediction.memory_bytes;
  for (const Candidate& c : search(config_of, small, {"none"}).best)
    EXPECT_LE(c.prediction.memory_bytes, small.memory_per_rank) << c.words;
}

TEST(Search, CompressionPaysOnASlowNetwork) {
  const std::vector<std::string> presets = {"none", "thinwire"};
  EXPECT_EQ(search(config_of, two_nodes(0.05), presets).best[0].preset, "thinwire");
  EXPECT_EQ(search(config_of, two_nodes(1000.0), presets).best[0].preset, "none");
}

}  // namespace
}  // namespace thinwire::search_test
