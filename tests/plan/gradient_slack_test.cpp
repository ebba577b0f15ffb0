// Gradients with more bits, as critical rules give them from stated times, against the planner's simulator, to which
// the same times are the machine's: the step takes as long as with the fewest bits, whatever else is on the link.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/run/config/load_config.h"
#include "engine/run/plan/prediction.h"
#include "engine/run/train/gradient_bits.h"
#include "engine/run/train/step_rehearsal.h"

namespace thinwire::gradient_slack_test {
namespace {

constexpr double kGbps = 1.0;

// Computes at one rate, and nothing costs anything but products and the link.
Cluster cluster_of(int ranks) {
  Cluster cluster;
  cluster.nodes = ranks;
  cluster.links[static_cast<int>(Reach::kNodes)].gbps = kGbps;
  cluster.machine.cores = 1;
  cluster.machine.flops = 2e10;
  cluster.machine.bytes_per_second = cluster.machine.sum_bytes_per_second = 1e30;
  cluster.machine.any_codec = {1e30, 1e30};
  return cluster;
}

RunConfig config_of(std::vector<std::string> more) {
  const std::string text =
      R"({"hidden_size": 128, "num_attention_heads": 4, "seq_length": 64, "tokenizer": "byte", "vocab_size": 256,
          "num_layers": 6, "train_micro_batch_size_per_gpu": 1, "train_iters": 4, "lr": 1e-3, "threads_per_rank": 1})";
  return load_config_text({{"slack.json", text}}, more, {.dry_run = true}).run;
}

// Milliseconds of a layer's forward and backward pass in the simulator.
double layer_ms() {
  const auto step = [](const char* layers) { return predict(config_of({layers}), cluster_of(1)).step_ms; };
  return step("num_layers=7") - step("num_layers=6");
}

std::vector<std::string> keys_of(int ranks, int tensor, std::vector<std::string> keys, bool more_bits) {
  const std::string select = more_bits ? R"("select": {"micro_batches": "critical"}, )" : "";
  keys.push_back(R"(compression.rules=[{"site": "dp.gradient", )" + select + R"("codec": "block_int", "bits": 4},
    {"site": "dp.gradient", )" +
                 select + R"("codec": "block_int", "bits": 8},
    {"site": "dp.gradient", "codec": "identity"}])");
  keys.push_back("pipe_partition_costs=[" + std::to_string(layer_ms() / tensor) + ",0,0]");
  keys.push_back("model_parallel_size=" + std::to_string(tensor));
  keys.push_back("link_gbps=" + std::to_string(kGbps));
  keys.push_back("global_num_gpus=" + std::to_string(ranks));
  return keys;
}

// Gathers of weights between two layers' backward passes, and sums of tensor ranks, take what looks like slack.
TEST(GradientSlack, IsNotThatOfOtherSites) {
  struct Case {
    const char* name;
    int ranks, tensor;
    std::vector<std::string> keys;
  };
  for (const Case& each : std::vector<Case>{
           {"gradients alone", 2, 1, {"gradient_accumulation_steps=1"}},
           {"weights behind the step", 2, 1, {"zero_optimization.stage=1"}},
           {"weights in the backward pass", 2, 1, {"zero_optimization.stage=3"}},
           {"tensor traffic", 4, 2, {}},
           {"messages between stages", 4, 1, {"pipe_parallel_size=2", "gradient_accumulation_steps=4"}}}) {
    const RunConfig least = config_of(keys_of(each.ranks, each.tensor, each.keys, false));
    const Prediction a = predict(least, cluster_of(each.ranks));
    // Whoever gets bits first.
    for (const std::string sensitivities : {"null", "[5.39, 0, 0.87, 1.87]", "[0, 1, 0, 0]", "[0, 0, 1, 0]"}) {
      std::vector<std::string> keys = keys_of(each.ranks, each.tensor, each.keys, true);
      keys.push_back("compression.sensitivities=" + sensitivities);
      const RunConfig more = config_of(keys);
      const Prediction b = predict(more, cluster_of(each.ranks));
      const StepRehearsal rehearsal(more, layout_of(more, 0));
      int raised = 0;
      for (const GradientBits& g : gradient_bits(more, rehearsal.replica().layout(), rehearsal.replica().store()))
        raised += g.bits > 5.0 ? 1 : 0;
      EXPECT_GT(raised, 0) << each.name << ' ' << sensitivities;
      EXPECT_LE(b.step_ms, 1.01 * a.step_ms) << each.name << ' ' << sensitivities;
    }
  }
}

}  // namespace
}  // namespace thinwire::gradient_slack_test
