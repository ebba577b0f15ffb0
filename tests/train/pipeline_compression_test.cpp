// Which messages between stages are critical: by the layers and the head of every stage, and by what the configuration
// says of link and layers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/run/config/load_config.h"
#include "engine/run/train/compression_setup.h"
#include "engine/run/train/rank_layout.h"

namespace thinwire::pipeline_compression_test {
namespace {

constexpr int kMicroBatches = 4;

RunConfig two_stages(int vocab, std::vector<std::string> more) {
  const std::string text =
      "{\"num_layers\": 4, \"hidden_size\": 1024, \"num_attention_heads\": 4, \"seq_length\": 32, \"tokenizer\": "
      "\"byte\", "
      "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4, \"train_iters\": 4, \"lr\": 1e-3, "
      "\"pipe_parallel_size\": 2, \"global_num_gpus\": 2, \"schedule\": \"gpipe\", \"compression\": {\"pp.forward\": "
      "{\"codec\": \"block_int\", \"bits\": 8, \"select\": {\"micro_batches\": \"critical\"}}}}";
  more.push_back("vocab_size=" + std::to_string(vocab));
  return load_config_text({{"two.json", text}}, more, {.dry_run = true}).run;
}

int coded_activations(const RunConfig& config) {
  const PipelineCompression compression = pipeline_compression(config, layout_of(config, 0).pipeline);
  int count = 0;
  for (int micro = 0; micro < kMicroBatches; ++micro) count += compression.forward.front().coded(0, micro) ? 1 : 0;
  return count;
}

// Stages of about equal length (the small head is a sixteenth of a layer) wait for every activation; in front of a head
// as long as many layers only the first is waited for, the others queue.
TEST(PipelineCompression, AHeadThatTakesLongLeavesSlack) {
  EXPECT_EQ(coded_activations(two_stages(256, {})), kMicroBatches);
  EXPECT_EQ(coded_activations(two_stages(60000, {})), 1);
}

// 32 x 1024 fp32 activations are 128 KiB: 105 s at 10 kbit/s, nothing at 1 Tbit/s. A layer takes 3 ms, a stage's
// forward 2.
TEST(PipelineCompression, TheLinkDecidesWhatASlowerHeadHides) {
  const std::string costs = "pipe_partition_costs=[3,0,0]";
  EXPECT_EQ(coded_activations(two_stages(60000, {costs, "link_gbps=0.00001"})), kMicroBatches);
  EXPECT_EQ(coded_activations(two_stages(60000, {costs, "link_gbps=1000"})), 1);
  // Without knowing how long a layer takes the link says nothing.
  EXPECT_EQ(coded_activations(two_stages(60000, {"link_gbps=0.00001"})), 1);
}

}  // namespace
}  // namespace thinwire::pipeline_compression_test
