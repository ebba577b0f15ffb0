// The search: its order, its bounds, its memory limit, and that a slow network makes compression win.
#include "engine/run/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/run/config/layout_text.h"
#include "engine/run/config/load_config.h"
#include "engine/run/config/named_shapes.h"
#include "engine/run/train/dry_run.h"

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
  for (const char* rest : {"threads_per_rank=1", "train_batch_size=16"}) overrides.emplace_back(rest);
  overrides.insert(overrides.end(), more.begin(), more.end());
  ConfigOptions options;
  options.ranks = 4, options.found_ranks_per_node = 2, options.dry_run = true;
  return load_config({}, overrides, options).run;
}

// Of a batch that the shape's own micro-batches divide over all ranks.
RunConfig large_batch(std::vector<std::string> more) {
  more.insert(more.begin(), "train_batch_size=64");
  return config_of(more);
}

double saved_by(const std::vector<std::string>& overrides) {
  return static_cast<double>(save_bytes(config_of(overrides)));
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
  // The limit is for all of it: what is planned, what operations under way take as well, and a save's copy.
  Cluster small = cluster;
  const double planned = memory_of(config_of(r.best[0].overrides), cluster.machine),
               all = r.best[0].prediction.memory_bytes;
  ASSERT_LT(planned, all);
  small.memory_per_rank = (planned + all) / 2.0 + saved_by(r.best[0].overrides);
  const SearchResult fits = search(config_of, small, {r.best[0].preset});
  EXPECT_FALSE(fits.best.empty());
  for (const Candidate& c : fits.best)
    EXPECT_LE(c.prediction.memory_bytes + saved_by(c.overrides), small.memory_per_rank) << c.words;
}

// Without a byte for it there is no run: every one saves at its end. On a GPU the copy lies beside its memory.
TEST(Search, LeavesRoomForASave) {
  Cluster cluster = two_nodes(1.0);
  const CandidateConfig alone = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = shape_overrides("tiny");
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load_config({}, overrides, {.ranks = 1, .found_ranks_per_node = 1, .dry_run = true}).run;
  };
  cluster.nodes = cluster.ranks_per_node = 1;
  const SearchResult all = search(alone, cluster, {"none"});
  ASSERT_FALSE(all.best.empty());
  double least = all.best[0].prediction.memory_bytes;
  for (const Candidate& c : all.best) least = std::min(least, c.prediction.memory_bytes);
  const auto saved = static_cast<double>(save_bytes(alone(all.best[0].overrides)));
  EXPECT_GE(saved, 12.0 * 4 * 12 * 128 * 128);  // weights and two moments of the layers' matrices
  cluster.memory_per_rank = least + saved;
  EXPECT_FALSE(search(alone, cluster, {"none"}).best.empty());
  for (const Candidate& c : search(alone, cluster, {"none"}).best)
    EXPECT_LE(c.prediction.memory_bytes + saved, cluster.memory_per_rank) << c.words;
}

// Of ways that hold weights as long, recomputation only takes time: the first that fits is the one to name.
TEST(Search, RecomputesNoMoreThanItHasTo) {
  Cluster cluster = two_nodes(1.0);
  std::set<std::string> seen;
  const double sharded = static_cast<double>(save_bytes(large_batch({"zero_optimization.stage=1"})));
  for (double memory : {0.0, 36e6 + sharded}) {  // of a step, and of a save by ranks that share the optimizer's state
    cluster.memory_per_rank = memory;
    const SearchResult r = search(config_of, cluster, {"none"});
    EXPECT_EQ(r.candidates, r.refused + r.too_large + r.pruned + r.simulated);
    ASSERT_EQ(r.best.size(), 10u);
    for (const Candidate& c : r.best)
      for (const char* less : {"none", "selective", "full"}) {
        std::vector<std::string> overrides = c.overrides;
        const std::string key = "recompute_granularity=";
        std::string& word = *std::ranges::find_if(overrides, [&](const auto& o) { return o.starts_with(key); });
        if (word == key + less) {
          seen.insert(less);
          break;
        }
        word = key + less;
        const Prediction other = predict(config_of(overrides), cluster);
        if (other.layout != c.prediction.layout) continue;
        EXPECT_GT(other.memory_bytes + saved_by(overrides), memory) << c.words;
        EXPECT_GT(memory, 0.0) << c.words;
      }
  }
  EXPECT_TRUE(seen.contains("none") && seen.contains("selective"));
}

// What a cluster's memory decides stands in the words.
TEST(Search, LayoutSaysHowLongWeightsAreHeld) {
  Cluster cluster = two_nodes(1.0);
  const RunConfig config =
      config_of({"pipe_parallel_size=2", "zero_optimization.stage=3", "train_micro_batch_size_per_gpu=2"});
  EXPECT_NE(predict(config, cluster).layout.find("held for one use"), std::string::npos);
  cluster.memory_per_rank = 1e12;
  EXPECT_NE(predict(config, cluster).layout.find("held for the step"), std::string::npos);
}

TEST(Search, BoundsHoldWhereRanksShareCores) {
  Cluster one = two_nodes(1.0);
  one.nodes = one.ranks_per_node = 1, one.shared_cores = 2;
  const CandidateConfig alone = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = shape_overrides("tiny");
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load_config({}, overrides, {.ranks = 1, .found_ranks_per_node = 1, .dry_run = true}).run;
  };
  const SearchResult r = search(alone, one, {"none"});
  ASSERT_FALSE(r.best.empty());
  for (const Candidate& c : r.best) EXPECT_GE(c.prediction.step_ms, c.bound_ms) << c.words;
}

// Levels of a placement are those of the cluster's nodes: a node's copy of the weights, between two ranks.
TEST(Search, MemoryKnowsNodes) {
  const std::vector<std::string> keys = {"zero_optimization.stage=3", "placement.secondary=node"};
  std::vector<std::string> pretended = keys;
  pretended.emplace_back("ranks_per_node=2");
  const Machine machine;
  EXPECT_EQ(memory_of(large_batch(keys), machine), memory_of(large_batch(pretended), machine));
  EXPECT_GT(memory_of(large_batch(keys), machine), memory_of(large_batch({keys[0]}), machine));
}

TEST(Search, RanksThatShareSequences) {
  const CandidateConfig shared = [](std::vector<std::string> more) {
    more.insert(more.begin(), "context_parallel_size=2");
    return config_of(more);
  };
  const SearchResult r = search(shared, two_nodes(1.0), {"none"});
  ASSERT_FALSE(r.best.empty());
  EXPECT_NE(r.best[0].words.find("cp 2"), std::string::npos) << r.best[0].words;
}

// Where a preset says how states are sharded, ZeRO stages are one way, named after the preset's.
TEST(Search, OneWayHasOneName) {
  const SearchResult r = search(config_of, two_nodes(1.0), {"sdp4bit"});
  std::set<std::string> ways;
  for (const Candidate& c : r.best) {
    std::string way;
    for (const std::string& o : c.overrides)
      if (!o.starts_with("zero_optimization.stage=")) way += o + " ";
    way += placement_text(config_of(c.overrides).layout.placement);
    EXPECT_TRUE(ways.insert(way).second) << c.words;
    EXPECT_NE(c.words.find(placement_text(config_of(c.overrides).layout.placement)), std::string::npos) << c.words;
  }
}

// No trade is hidden: beside each preset stands what it cost in loss, or that nobody has measured it.
TEST(Search, SaysWhatAPresetCosts) {
  Cluster cluster = two_nodes(0.05);
  cluster.nodes = 1, cluster.ranks_per_node = 4;  // no link between nodes whose rate could decide
  const LossGap* flat = measured_loss_gap("thinwire", 1);
  const LossGap* deep = measured_loss_gap("thinwire", 4);
  ASSERT_TRUE(flat != nullptr && deep != nullptr);
  EXPECT_EQ(flat->stages, 1);
  EXPECT_EQ(deep->stages, 2);
  EXPECT_EQ(measured_loss_gap("powersgd", 4)->stages, 1);  // measured without a pipeline only
  EXPECT_EQ(measured_loss_gap("zhybrid_ring", 1), nullptr);
  SearchResult r;
  for (const char* preset : {"none", "thinwire", "zhybrid_ring"}) {
    Candidate c;
    c.preset = c.words = preset;
    c.overrides = {"compression.preset=" + c.preset};
    c.prediction = predict(large_batch(c.overrides), cluster);
    r.best.push_back(std::move(c));
  }
  const std::string text = search_text(r, large_batch, cluster), json = search_json(r, cluster, "plan");
  EXPECT_NE(text.find("zhybrid_ring, loss not measured\n"), std::string::npos) << text;
  char want[64];
  std::snprintf(want, sizeof want, "  thinwire, loss %+.2f +- %.2f %%\n", flat->percent, flat->half);
  EXPECT_NE(text.find(want), std::string::npos) << text;
  std::istringstream rows(json);
  std::string row;
  for (const Candidate& c : r.best) {
    std::getline(rows, row);
    const LossGap* gap = measured_loss_gap(c.preset, c.stages);
    const nlohmann::json found = nlohmann::json::parse(row).at("loss_gap_percent");
    if (c.preset == "none")
      EXPECT_EQ(found, 0.0);
    else
      EXPECT_EQ(found, gap == nullptr ? nlohmann::json() : nlohmann::json(gap->percent)) << row;
  }
}

TEST(Search, CompressionPaysOnASlowNetwork) {
  const std::vector<std::string> presets = {"none", "thinwire"};
  EXPECT_EQ(search(config_of, two_nodes(0.05), presets).best[0].preset, "thinwire");
  EXPECT_EQ(search(config_of, two_nodes(1000.0), presets).best[0].preset, "none");
}

}  // namespace
}  // namespace thinwire::search_test
