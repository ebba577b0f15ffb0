// Coordinates and groups of the mesh against brute force, and channels on it.
#include "parallel/channel/mesh.h"

#include <set>

#include "compression/codec_table.h"
#include "engine/base/core/error.h"
#include "parallel/sites/control.h"
#include "tests/comm/local_group.h"

namespace thinwire::mesh_test {
namespace {

TEST(Mesh, CoordinatesAndGroupsMatchBruteForce) {
  for (int pipeline = 1; pipeline <= 4; ++pipeline) {
    for (int data = 1; data <= 4; ++data) {
      for (int tensor = 1; tensor <= 4; ++tensor) {
        const MeshShape shape{pipeline, data, tensor};
        int rank = 0;
        for (int p = 0; p < pipeline; ++p) {
          for (int d = 0; d < data; ++d) {
            for (int t = 0; t < tensor; ++t, ++rank) {
              const Coordinates at = coordinates_of(shape, rank);
              ASSERT_EQ(rank_at(shape, {p, d, t}), rank);
              ASSERT_TRUE(at.pipeline == p && at.data == d && at.tensor == t);
              // A group is all ranks that agree with me in the two other coordinates, ascending.
              std::vector<int> same[3];
              for (int r = 0; r < shape.ranks(); ++r) {
                const Coordinates c = coordinates_of(shape, r);
                if (c.pipeline == p && c.data == d) same[0].push_back(r);
                if (c.pipeline == p && c.tensor == t) same[1].push_back(r);
                if (c.data == d && c.tensor == t) same[2].push_back(r);
              }
              ASSERT_EQ(tensor_ranks(shape, at), same[0]);
              ASSERT_EQ(data_ranks(shape, at), same[1]);
              ASSERT_EQ(pipeline_ranks(shape, at), same[2]);
            }
          }
        }
        ASSERT_EQ(rank, shape.ranks());
      }
    }
  }
}

TEST(Mesh, PretendedNodesAreRunsOfRanks) {
  EXPECT_EQ(pretend_nodes(5, 2), (std::vector<int>{0, 0, 1, 1, 2}));
}

// Nodes of five ranks and three: of two tensor ranks' groups one lies evenly on them, and the other does not.
TEST(Mesh, TensorRanksSumGradientsInOneOrder) {
  const MeshShape shape{1, 4, 2};
  const std::vector<int> uneven = pretend_nodes(8, 5), even = pretend_nodes(8, 4);
  for (int t = 0; t < 2; ++t) {
    const std::vector<int> group = data_ranks(shape, {0, 0, t});
    EXPECT_FALSE(common_grid(shape, uneven, group).two_level());
    EXPECT_EQ(common_grid(shape, even, group), (NodeGrid{2, 2}));
    EXPECT_EQ(common_grid(shape, std::vector<int>(8, 0), group), (NodeGrid{1, 4}));
  }
  constexpr int64_t kCount = 64 << 10;
  std::vector<std::vector<char>> sums(8);
  run_ranks(8, [&](Progress& progress) {
    Mesh mesh(progress, shape, uneven);
    Channel channel = mesh.channel(GroupKind::kGradientReplicas, Site::kDpGradient, data_ranks(shape, mesh.at()));
    Buffer data(DType::f32, kCount);
    data.fill(3, mesh.at().data);
    HostStream stream;
    channel.all_reduce(data.view(), ReduceKind::kSum, stream).wait(stream);
    sums[static_cast<size_t>(mesh.rank())] = data.bytes();
  });
  for (size_t rank = 1; rank < sums.size(); ++rank) EXPECT_EQ(sums[rank], sums[0]) << "rank " << rank;
}

TEST(Mesh, ChannelsAddWithinTheirGroups) {
  const MeshShape shape{2, 2, 2};
  run_ranks(8, [&](Progress& progress) {
    HostStream stream;
    Mesh mesh(progress, shape, pretend_nodes(8, 4));
    struct Case {
      GroupKind kind;
      Site site;
      std::vector<int> ranks;
    };
    const Case cases[] = {{GroupKind::kTpForward, Site::kTpForward, tensor_ranks(shape, mesh.at())},
                          {GroupKind::kGradientShard, Site::kDpGradient, data_ranks(shape, mesh.at())},
                          {GroupKind::kPpForward, Site::kPpForward, pipeline_ranks(shape, mesh.at())},
                          {GroupKind::kWorld, Site::kControl, all_ranks(8)}};
    // All at once: they must not take each other's messages.
    std::vector<Channel> channels;
    std::vector<std::vector<int64_t>> data(4, std::vector<int64_t>(1000, mesh.rank() + 1));
    std::vector<Ticket> open;
    for (size_t i = 0; i < 4; ++i) channels.push_back(mesh.channel(cases[i].kind, cases[i].site, cases[i].ranks));
    for (size_t i = 0; i < 4; ++i)
      open.push_back(channels[i].all_reduce(View(data[i].data(), DType::i64, {1000}), ReduceKind::kSum, stream));
    for (size_t i = 4; i-- > 0;) open[i].wait(stream);
    for (size_t i = 0; i < 4; ++i) {
      int64_t sum = 0;
      for (int r : cases[i].ranks) sum += r + 1;
      for (int64_t v : data[i]) ASSERT_EQ(v, sum);
      EXPECT_EQ(mesh.counters(cases[i].site).operations, 1);
    }
  });
}

// Replicas that rounded by the same chances would err alike, and their mean would keep the error. Tensor-parallel ranks
// that send the same must go on agreeing.
TEST(Mesh, ReplicasRoundByChancesOfTheirOwn) {
  const MeshShape shape{2, 2, 2};
  constexpr int64_t kCount = 4096;
  std::vector<std::vector<char>> received(8);
  run_ranks(8, [&](Progress& progress) {
    Mesh mesh(progress, shape, pretend_nodes(8, 8));
    SiteRule rule;
    rule.codec = codec_spec("block_int", {{"bits", 4}, {"block", 64}, {"rounding", "stochastic"}});
    rule.min_bytes = 0;
    Mesh::Compressions compressions;
    compressions[static_cast<size_t>(Site::kPpForward)] = {make_site_compression(Site::kPpForward, rule)};
    mesh.use_compressions(compressions);
    const Coordinates at = coordinates_of(shape, mesh.rank());
    Channel channel = mesh.channel(GroupKind::kPpForward, Site::kPpForward, pipeline_ranks(shape, at));
    HostStream stream;
    Buffer data(DType::f32, kCount);
    data.fill(3, 0);
    if (at.pipeline == 0) {
      channel.send(data.view(), 1, stream).wait(stream);
    } else {
      channel.receive(data.view(), 0, stream).wait(stream);
      received[static_cast<size_t>(mesh.rank())] = data.bytes();
    }
  });
  const auto of = [&](int data, int tensor) {
    return received[static_cast<size_t>(rank_at(shape, {1, data, tensor}))];
  };
  EXPECT_EQ(of(0, 0), of(0, 1));
  EXPECT_EQ(of(1, 0), of(1, 1));
  EXPECT_NE(of(0, 0), of(1, 0));
}

// Groups that add up the sums of others have the same slots and ranks as those, and must not round alike.
TEST(Mesh, FurtherSumsRoundByChancesOfTheirOwn) {
  const MeshShape shape{1, 2, 1};
  std::vector<std::vector<char>> sums(3);
  run_ranks(2, [&](Progress& progress) {
    Mesh mesh(progress, shape, pretend_nodes(2, 2));
    SiteRule rule;
    rule.codec = codec_spec("block_int", {{"bits", 4}, {"block", 64}, {"rounding", "stochastic"}});
    Mesh::Compressions compressions;
    compressions[static_cast<size_t>(Site::kDpGradient)] = {make_site_compression(Site::kDpGradient, rule)};
    mesh.use_compressions(compressions);
    HostStream stream;
    size_t i = 0;
    for (const GroupKind kind :
         {GroupKind::kGradientShard, GroupKind::kGradientOptimizer, GroupKind::kGradientReplicas}) {
      const bool further = kind == GroupKind::kGradientReplicas;
      Channel channel = mesh.channel(kind, Site::kDpGradient, data_ranks(shape, mesh.at()), further);
      Buffer data(DType::f32, 4096);
      data.fill(3, mesh.rank());
      channel.all_reduce(data.view(), ReduceKind::kSum, stream).wait(stream);
      if (mesh.rank() == 0) sums[i] = data.bytes();
      ++i;
    }
  });
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_NE(sums[0], sums[2]);
}

// Nobody but rank 0 is ever connected to all ranks.
TEST(Mesh, TextsOfAllRanksGoToRank0Alone) {
  constexpr int kRanks = 64, kTimes = 3;
  const auto text_of = [](int rank, int time) {
    return std::string(static_cast<size_t>(rank % 5 * 1000), static_cast<char>('a' + (rank + time) % 26));
  };
  std::vector<WireCounters> counters(kRanks);
  run_ranks(kRanks,
            [&](Progress& progress) {
              const int me = progress.transport().rank();
              Control control(Channel(std::make_unique<Communicator>(progress, all_ranks(kRanks), 0, Site::kControl,
                                                                     &counters[static_cast<size_t>(me)])));
              for (int time = 0; time < kTimes; ++time) {
                std::vector<std::string> expected;
                for (int r = 0; me == 0 && r < kRanks; ++r) expected.push_back(text_of(r, time));
                EXPECT_EQ(control.collect(text_of(me, time)), expected);
              }
            },
            0, {.thread = false, .spin_us = 0});
  EXPECT_EQ(counters[0].messages, 0);
  for (const WireCounters& c : counters) EXPECT_LE(c.messages, 2 * kTimes) << "a length, and a text";
}

TEST(Mesh, ChannelOfOneRankMovesNothing) {
  run_ranks(1, [](Progress& progress) {
    HostStream stream;
    Mesh mesh(progress, {1, 1, 1}, {0});
    Channel channel = mesh.channel(GroupKind::kWorld, Site::kControl, {0});
    EXPECT_FALSE(static_cast<bool>(channel));
    EXPECT_EQ(channel.size(), 1);
    std::vector<float> data = {1.0f, 2.0f};
    const View view(data.data(), DType::f32, {2});
    const std::vector<int64_t> bounds = {0, 2};
    EXPECT_FALSE(channel.all_reduce(view, ReduceKind::kSum, stream).open());
    EXPECT_FALSE(channel.reduce_scatter(view, bounds, view, false, stream).open());
    EXPECT_FALSE(channel.all_gather(view, view, bounds, stream).open());
    EXPECT_FALSE(channel.barrier().open());
    EXPECT_EQ(data, (std::vector<float>{1.0f, 2.0f}));
  });
}

}  // namespace
}  // namespace thinwire::mesh_test
