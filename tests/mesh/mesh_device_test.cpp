// Training on devices whose memory the host cannot touch, over ranks: everything that leaves a rank is staged through
// the host. Same bits as on the CPU.
#include <gtest/gtest.h>

#include "tests/mesh/mesh_harness.h"

namespace thinwire::mesh::mesh_device_test {
namespace {

void expect_same_bits(const Model& model, Layout layout, int samples, int steps = 3) {
  const Curve host = run(model, layout, samples, steps);
  layout.fake_gpu = true;
  const Curve device = run(model, layout, samples, steps);
  EXPECT_EQ(host.loss, device.loss) << layout.name();
  EXPECT_EQ(host.norm, device.norm) << layout.name();
  EXPECT_EQ(host.end, device.end) << layout.name();  // weights, moments and residuals after the last update, too
}

TEST(MeshDevice, PlainLayouts) {
  expect_same_bits({.family = "gpt2", .layers = 2, .dropout = 0.1}, {}, 2);
  expect_same_bits({.family = "gpt2", .layers = 2}, {.data = 2, .accumulation = 2}, 4);
  expect_same_bits({.family = "llama", .layers = 2, .dtype = "bf16"}, {.tensor = 2, .sequence_parallel = true}, 2);
  expect_same_bits({.family = "olmo", .layers = 2, .dtype = "bf16"}, {.tensor = 2, .sequence_parallel = true}, 2);
  expect_same_bits({.family = "gpt2", .layers = 3, .dropout = 0.1},
                   {.pipeline = 2, .data = 2, .embedding = "two_step", .accumulation = 2}, 4);
  expect_same_bits({.family = "neox", .layers = 4}, {.pipeline = 2, .schedule = "zb_h1", .accumulation = 3}, 3);
  expect_same_bits({.family = "llama", .layers = 2, .dtype = "bf16"}, {.context = 3, .more = {"cp_comm_type=p2p"}}, 2);
}

// With the key cuda_graphs, passes of one rank, norms, and steps that nothing is published behind are recorded and
// queued again.
TEST(MeshDevice, RecordedSteps) {
  const std::vector<std::string> graphs = {"cuda_graphs=true"};
  expect_same_bits({.family = "gpt2", .layers = 2, .dropout = 0.1}, {.accumulation = 2, .more = graphs}, 4, 5);
  expect_same_bits({.family = "llama", .layers = 2, .dtype = "bf16"}, {.recompute = "selective", .more = graphs}, 2, 5);
  Layout sharded{.data = 2, .gradients = "global", .optimizer = "global", .accumulation = 2, .more = graphs};
  expect_same_bits({.family = "gpt2", .layers = 2, .dtype = "bf16"}, sharded, 4, 5);
  expect_same_bits({.family = "neox", .layers = 4},
                   {.pipeline = 2, .schedule = "zb_h1", .accumulation = 3, .more = graphs}, 3, 5);
}

TEST(MeshDevice, ShardedPlacements) {
  Layout sharded{.data = 2, .weights = "global", .gradients = "global", .optimizer = "global", .accumulation = 2};
  expect_same_bits({.family = "llama_tied", .layers = 3, .dtype = "bf16"}, sharded, 4);
  Layout kept{.data = 4, .weights = "global", .gradients = "global", .optimizer = "global", .secondary = "node"};
  kept.ranks_per_node = 2;
  expect_same_bits({.family = "gpt2", .layers = 2}, kept, 4);
  Layout states{.data = 2, .tensor = 2, .optimizer = "global", .accumulation = 2};
  expect_same_bits({.family = "gpt2", .layers = 2, .dtype = "bf16"}, states, 4);
}

// Chunks wait in the host's memory, moved in the order of tickets. (MeshNccl has more layouts.)
TEST(MeshDevice, OffloadedChunks) {
  for (Layout layout :
       {Layout{.accumulation = 2, .more = {"cuda_graphs=true"}}, Layout{.data = 2, .recompute = "full"}}) {
    layout.fake_gpu = true;
    const Model model{.family = "gpt2", .layers = 2, .dropout = 0.1};
    EXPECT_TRUE(run(model, in_chunks(layout, true), 2, 3) == run(model, in_chunks(layout, false), 2, 3))
        << layout.name();
  }
}

TEST(MeshDevice, CodedSites) {
  Layout coded{.data = 2, .accumulation = 2};
  coded.more = {"compression.dp.gradient.codec=block_int", "compression.dp.gradient.bits=8",
                "compression.dp.gradient.residual=error_feedback"};
  expect_same_bits({.family = "gpt2", .layers = 2}, coded, 4);
  Layout wire{.pipeline = 2, .data = 2, .accumulation = 2};
  wire.more = {"compression.preset=bf16_wire"};
  expect_same_bits({.family = "llama", .layers = 2}, wire, 4);
  Layout ring{.context = 2};
  ring.more = {"cp_comm_type=p2p", "compression.sequence={\"codec\": \"block_int\", \"bits\": 8}"};
  expect_same_bits({.family = "gpt2", .layers = 2}, ring, 2);
}

}  // namespace
}  // namespace thinwire::mesh::mesh_device_test
