// Memory is planned, said, and refused where it is not there: activation_offload's on the host, a save's, a part of a
// GPU that ranks share.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/job.h"
#include "engine/run/train/memory_check.h"
#include "tests/support/local_world.h"
#include "tests/train/small_run.h"

namespace thinwire::offload_plan_test {
namespace {

RunConfig config_of(const std::vector<std::string>& more) {
  return small_run({"num_layers=6", "train_batch_size=4", "pos_emb=rotary", "seq_length=4096", "sequence_chunk_size=64",
                    "max_position_embeddings=4096", "recompute_granularity=full", "run_dir=runs/offload_plan_test"},
                   more);
}

TEST(OffloadPlan, HostMemoryIsBesideTheDevices) {
  const MemoryPlan kept = plan_memory(config_of({"device=cuda"}));
  const MemoryPlan out = plan_memory(config_of({"device=cuda", "activation_offload=host"}));
  const MemoryPlan disk = plan_memory(config_of({"activation_offload=disk"}));
  EXPECT_EQ(kept.host, 0u);
  EXPECT_EQ(disk.host, 0u);
  // Six inputs of layers, input and gradients of head and stream, keys and their gradients, of two sequences.
  EXPECT_GE(out.host, size_t{2} * 4096 * 32 * 4 * (6 + 3 + 2 * 2));
  EXPECT_LT(out.total() + 3 * out.host / 4, kept.total());
  EXPECT_EQ(out.total(), disk.total());

  const std::string text = dry_run_text(config_of({"device=cuda", "activation_offload=host"}));
  const std::string said = printed("host memory: %.1f MiB of room, ", static_cast<double>(out.host) / 1048576.0);
  EXPECT_NE(text.find("activations in page-locked " + said), std::string::npos) << text;
}

TEST(OffloadPlan, ANodeWithoutTheRoomIsRefused) {
  const std::unique_ptr<Device> device = make_rehearsal_device();
  const RunConfig config = config_of({"device=cuda", "activation_offload=host"});
  ::setenv("SLURM_MEM_PER_NODE", "40", 1);  // MiB
  try {
    refuse_what_does_not_fit(config, 4, *device);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    for (const char* part : {"not enough host memory", "activation_offload host", "4 ranks", "SLURM_MEM_PER_NODE"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
  ::unsetenv("SLURM_MEM_PER_NODE");
  EXPECT_NO_THROW(refuse_what_does_not_fit(config, 1, *device));
}

// Every run saves: room for its steps alone would have the kernel kill it there.
TEST(MemoryPlan, HasRoomForASave) {
  const std::unique_ptr<Device> device = make_rehearsal_device();
  const RunConfig config = config_of({"hidden_size=256"});
  const size_t steps = plan_memory(config).total() + process_overhead(config), save = save_bytes(config);
  ASSERT_GT(save, size_t{40} << 20);
  ::setenv("SLURM_MEM_PER_NODE", std::to_string((steps + save / 2) >> 20).c_str(), 1);
  EXPECT_THROW(refuse_what_does_not_fit(config, 1, *device), Error);
  EXPECT_NO_THROW(refuse_what_does_not_fit(config, 1, *device, false));
  ::unsetenv("SLURM_MEM_PER_NODE");
}

// Beside master weights and two moments, the weights that a coded all-gather has left: fp32, too.
TEST(MemoryPlan, ASaveCopiesWhatACodedAllGatherMadeOfTheWeights) {
  const std::vector<std::string> two_ranks = {"precision=fp32", "gradient_accumulation_steps=1",
                                              "zero_optimization.stage=1"};
  std::vector<std::string> coded = two_ranks;
  coded.emplace_back("compression.zero.parameter.codec=cast");
  const RunConfig config = config_of(coded);
  ASSERT_EQ(config.layout.data, 2);
  EXPECT_EQ(3 * save_bytes(config), 4 * save_bytes(config_of(two_ranks)));
}

class SmallGpu final : public Device {
 public:
  explicit SmallGpu(size_t bytes) : bytes_(bytes) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string description() const override { return "small"; }
  void* allocate(size_t) override { return nullptr; }
  void release(void*, size_t) override {}
  std::unique_ptr<Stream> make_stream() override { return nullptr; }
  Ticket copy_to_device(void*, const void*, size_t, Stream&) override { return Ticket::finished(); }
  Ticket copy_to_host(void*, const void*, size_t, Stream&) override { return Ticket::finished(); }
  void fill_zero(void*, size_t, Stream&) override {}
  size_t memory_total() const override { return bytes_; }

 private:
  size_t bytes_;
};

TEST(MemoryPlan, RanksThatShareAGpuHaveTheirPartEach) {
  const RunConfig config = config_of({"device=cuda"});
  const SmallGpu gpu(2 * (plan_memory(config).total() + process_overhead(config)));
  EXPECT_NO_THROW(refuse_what_does_not_fit(config, 4, gpu, true, 1));
  EXPECT_NO_THROW(refuse_what_does_not_fit(config, 4, gpu, true, 2));
  try {
    refuse_what_does_not_fit(config, 4, gpu, true, 3);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    EXPECT_NE(std::string(e.what()).find("for 3 ranks that share it"), std::string::npos) << e.what();
  }
}

TEST(MemoryPlan, SharersSayTheSame) {
  run_local_ranks(5, [](Transport& transport) {
    Job job(transport);
    const std::string owners[] = {"a", "b", "a", "", "a"};
    const int counts[] = {3, 1, 3, 1, 3};
    EXPECT_EQ(job.sharers(owners[job.rank()]), counts[job.rank()]);
  });
}

// Two hundred million samples are 2.4 GB on every rank.
TEST(MemoryPlan, HoldsTheOrderOfAllSamples) {
  const auto overhead = [](const std::string& iters) { return process_overhead(config_of({iters, "eval_iters=0"})); };
  EXPECT_EQ(overhead("train_iters=50000000") - overhead("train_iters=10"), size_t{12} * 4 * (50'000'000 - 10));
}

// Where the tokens that count are counted first, a step holds all of its micro-batches: here 50 of two sequences.
TEST(MemoryPlan, HoldsTheBatchesThatAStepReadsFirst) {
  const auto overhead = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"train_batch_size=100", "eod_token=60", "prefetch_batches=2"};
    all.insert(all.end(), more.begin(), more.end());
    const RunConfig config = config_of(all);
    EXPECT_EQ(config.accumulation, 50);
    return process_overhead(config);
  };
  constexpr size_t kTokens = size_t{2} * 4096;
  const size_t plain = overhead({});
  EXPECT_EQ(overhead({"eod_mask_loss=true"}) - plain, 50 * kTokens * 12);
  EXPECT_EQ(overhead({"eod_mask_loss=true", "calculate_per_token_loss=false"}), plain);
  // Positions, and the first keys of tokens.
  EXPECT_EQ(overhead({"reset_attention_mask=true", "reset_position_ids=true"}) - plain, 3 * kTokens * 8);
}

}  // namespace
}  // namespace thinwire::offload_plan_test
