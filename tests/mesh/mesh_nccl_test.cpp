// Training on devices that talk to each other: every layout gives the bits and the bytes of the host's way, and what
// ranks send each other never touches the host. Streams take their time, and the fake NCCL knows its rules.
#include <gtest/gtest.h>

#include "engine/run/train/device_traffic_choice.h"
#include "tests/mesh/mesh_harness.h"

namespace thinwire::mesh::mesh_nccl_test {
namespace {

struct Case {
  Model model;
  Layout layout;
  int samples;
};

void expect_same_bits(const std::vector<Case>& cases) {
  for (const auto& [model, plain, samples] : cases) {
    Layout layout = plain;
    const Curve host = run(model, layout, samples, 2);
    layout.fake_nccl = true;
    const Curve device = run(model, layout, samples, 2);
    EXPECT_EQ(host.loss, device.loss) << layout.name();
    EXPECT_EQ(host.norm, device.norm) << layout.name();
    EXPECT_EQ(host.wire, device.wire) << layout.name();
    EXPECT_EQ(host.end, device.end) << layout.name();  // weights and moments after the last update, too
  }
}

TEST(MeshNccl, DataAndTensorRanks) {
  expect_same_bits({
      {kGpt2, {.data = 2}, 2},
      {kGpt2, {.data = 3, .accumulation = 2}, 6},
      {{.family = "gpt2", .layers = 2, .dropout = 0.1}, {.tensor = 2}, 2},
      {kLlama, {.tensor = 2, .sequence_parallel = true}, 2},
      {kNeox, {.data = 2, .tensor = 2, .accumulation = 2, .recompute = "full"}, 4},
  });
}

TEST(MeshNccl, Pipelines) {
  expect_same_bits({
      {kNeox, {.pipeline = 2, .accumulation = 2}, 2},
      {kNeox, {.pipeline = 2, .schedule = "gpipe", .accumulation = 3}, 3},
      {kNeox, {.pipeline = 4, .accumulation = 5}, 5},
      {kNeox, {.pipeline = 2, .schedule = "zb_h1", .accumulation = 3}, 3},
      {kNeox, {.pipeline = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 4}, 4},
      {kLlama, {.pipeline = 2, .tensor = 2, .accumulation = 2}, 2},
      {kLlama, {.pipeline = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2}, 4},
  });
}

// The tied embedding's sum joins two stages, which come to it at different places of their plans.
TEST(MeshNccl, TiedEmbeddings) {
  expect_same_bits({
      {kGpt2, {.pipeline = 2, .data = 2, .embedding = "fused", .accumulation = 2}, 4},
      {kGpt2, {.pipeline = 2, .data = 2, .embedding = "two_step", .accumulation = 2}, 4},
      {kGpt2, zero(1, {.pipeline = 2, .data = 2, .embedding = "fused", .accumulation = 3}), 6},
      {kTied, zero(2, {.pipeline = 2, .data = 2, .accumulation = 3}), 6},
      {kTied, zero(3, {.pipeline = 2, .data = 2, .schedule = "zb_h1", .accumulation = 2}), 4},
  });
}

TEST(MeshNccl, ShardedPlacements) {
  Layout kept = zero(3, {.data = 4});
  kept.secondary = "node", kept.ranks_per_node = 2;
  kept.more = {"communication.reduce_scatter=direct", "communication.all_gather=direct",
               "communication.all_reduce=direct"};
  expect_same_bits({
      {kGpt2, zero(1, {.data = 2}), 2},
      {kTied, zero(2, {.data = 2, .accumulation = 2}), 4},
      {kTied, zero(3, {.data = 3, .accumulation = 2}), 6},
      {kGpt2, zero(1, {.data = 2, .tensor = 2, .accumulation = 2}), 4},
      {kGpt2, kept, 4},
  });
}

TEST(MeshNccl, LongSequences) {
  expect_same_bits({
      {kLlama, {.context = 2, .more = {"cp_comm_type=all_gather"}}, 2},
      {kLlama, {.context = 3, .more = {"cp_comm_type=p2p"}}, 2},
      {kLlama, {.context = 2, .more = {"cp_comm_type=a2a"}}, 2},
  });
}

// What waits in the host's memory comes back as it was, and moves what a rehearsal says (the harness counts).
TEST(MeshNccl, OffloadedChunks) {
  for (auto [model, layout, samples] : chunked_cases()) {
    layout.fake_nccl = true;
    const Curve kept = run(model, in_chunks(layout, false), samples, 2);
    EXPECT_TRUE(run(model, in_chunks(layout, true), samples, 2) == kept) << layout.name();
  }
}

TEST(MeshNccl, IsTakenWhereEveryRankHasAGpuOfItsOwn) {
  EXPECT_EQ(cannot_use_nccl({"a", "b", "c"}, Checksums::kNone), "");
  EXPECT_EQ(cannot_use_nccl({"a", "b", "a"}, Checksums::kNone), "ranks 0 and 2 share a GPU");
  EXPECT_EQ(cannot_use_nccl({"", ""}, Checksums::kNone), "this program was built without NCCL");
  EXPECT_EQ(cannot_use_nccl({"a", "b"}, Checksums::kBetweenNodes), "");
  EXPECT_NE(cannot_use_nccl({"a", "b"}, Checksums::kAll).find("checksum"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::mesh::mesh_nccl_test
