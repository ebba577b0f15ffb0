// Collectives in two levels against a float64 loop, and every algorithm's bytes against the counters.
#include "parallel/collective/two_level.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "parallel/collective/pieces.h"
#include "tests/comm/coded_bytes.h"
#include "tests/comm/local_group.h"
#include "tests/support/worst.h"

namespace thinwire::two_level_test {
namespace {

CommTuning only(Algorithm algorithm) {
  CommTuning tuning;
  tuning.all_reduce = tuning.reduce_scatter = tuning.all_gather = algorithm;
  return tuning;
}

std::vector<int> blocks(int nodes, int local) {
  std::vector<int> list;
  for (int r = 0; r < nodes * local; ++r) list.push_back(r / local + 3);
  return list;
}

// Bytes that member `me` would send, by rehearsal; bounds: members + 1 entries, in elements.
int64_t reduce_scatter_bytes(const CommTuning& tuning, std::span<const int> nodes, int me,
                             std::span<const int64_t> bounds, DType dtype) {
  const View whole = nowhere(dtype, bounds.back());
  return rehearsed_bytes(tuning, nodes, static_cast<int>(bounds.size()) - 1, me, [&](const GroupLane& lane) {
    return plain_reduce_scatter(lane, whole, Bounds(lane.pool(), bounds), whole, false);
  });
}

int64_t all_gather_bytes(const CommTuning& tuning, std::span<const int> nodes, int me, std::span<const int64_t> bounds,
                         DType dtype) {
  const View whole = nowhere(dtype, bounds.back());
  return rehearsed_bytes(tuning, nodes, static_cast<int>(bounds.size()) - 1, me, [&](const GroupLane& lane) {
    return plain_all_gather(lane, whole, whole, Bounds(lane.pool(), bounds));
  });
}

int64_t all_to_all_bytes(int me, std::span<const int64_t> from_bounds, DType dtype) {
  const View data = nowhere(dtype, from_bounds.back());
  return rehearsed_bytes({}, {}, static_cast<int>(from_bounds.size()) - 1, me, [&](const GroupLane& lane) {
    const Bounds bounds(lane.pool(), from_bounds);
    return coded_all_to_all(lane, plain_call(), data, bounds, data, bounds);
  });
}

int64_t broadcast_bytes(int members, int me, int root, int64_t bytes) {
  const View data = nowhere(DType::u8, bytes);
  return rehearsed_bytes({}, {}, members, me, [&](const GroupLane& lane) { return tree_broadcast(lane, data, root); });
}

TEST(NodeGrid, KnowsEvenGroups) {
  EXPECT_FALSE(node_grid({}, 4).two_level());
  const std::vector<int> one = {2, 2, 2}, own = {0, 1, 2}, even = {5, 5, 1, 1}, uneven = {0, 0, 0, 1},
                         interleaved = {0, 1, 0, 1}, back = {0, 0, 1, 1, 0, 0}, longer = {0, 0, 1, 1, 1, 1};
  EXPECT_FALSE(node_grid(one, 3).two_level());
  EXPECT_FALSE(node_grid(own, 3).two_level());
  EXPECT_TRUE(node_grid(even, 4).two_level());
  EXPECT_EQ(node_grid(even, 4).nodes, 2);
  EXPECT_EQ(node_grid(even, 4).local, 2);
  EXPECT_FALSE(node_grid(uneven, 4).two_level());
  EXPECT_FALSE(node_grid(interleaved, 4).two_level());
  EXPECT_FALSE(node_grid(back, 6).two_level());
  EXPECT_FALSE(node_grid(longer, 6).two_level());
}

// Every collective asks for the grid: what grows with the square of the group does not come back from this.
TEST(NodeGrid, LooksThroughLargeGroupsOnce) {
  constexpr int kMembers = 1 << 20;
  std::vector<int> nodes(kMembers);
  for (const int local : {1, 8}) {
    for (int r = 0; r < kMembers; ++r) nodes[static_cast<size_t>(r)] = r / local;
    EXPECT_EQ(node_grid(nodes, kMembers).two_level(), local > 1);
  }
}

TEST(Tuning, ChoosesWhatTheGroupCanDo) {
  const std::vector<int> even = blocks(2, 2), interleaved = {0, 1, 0, 1};
  const CommTuning two = only(Algorithm::kTwoLevel), automatic;
  EXPECT_EQ(choose_algorithm(two, Collective::kAllReduce, even, 4, 8), Algorithm::kTwoLevel);
  EXPECT_EQ(choose_algorithm(two, Collective::kAllReduce, even, 4, 8, ReduceKind::kMax), Algorithm::kDirect);
  EXPECT_EQ(choose_algorithm(two, Collective::kAllGather, interleaved, 4, 1 << 20), Algorithm::kDirect);
  EXPECT_EQ(choose_algorithm(automatic, Collective::kReduceScatter, even, 4, 1 << 20), Algorithm::kTwoLevel);
  EXPECT_EQ(choose_algorithm(automatic, Collective::kReduceScatter, even, 4, 1 << 10), Algorithm::kDirect);
  EXPECT_EQ(choose_algorithm(automatic, Collective::kAllReduce, {}, 4, 64 << 20), Algorithm::kDirect);
  EXPECT_EQ(choose_algorithm(only(Algorithm::kRing), Collective::kAllReduce, even, 4, 8), Algorithm::kRing);
}

// Unequal nodes, and members that are not next to each other: whatever is asked for, the route is a flat one.
TEST(Tuning, UnequalNodesTakeAFlatRoute) {
  for (int n = 3; n <= 33; ++n) {
    std::vector<int> uneven(static_cast<size_t>(n), 0), interleaved;
    uneven.back() = 1;
    for (int r = 0; r < n; ++r) interleaved.push_back(r % 2);
    std::vector<int64_t> bounds;
    for (int r = 0; r <= n; ++r) bounds.push_back(100 * r);
    for (const std::vector<int>& nodes : {uneven, interleaved}) {
      for (const Algorithm algorithm : {Algorithm::kTwoLevel, Algorithm::kAuto}) {
        const CommTuning tuning = only(algorithm);
        for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather})
          EXPECT_NE(choose_algorithm(tuning, collective, nodes, n, 1 << 30), Algorithm::kTwoLevel) << n;
        EXPECT_EQ(all_reduce_bytes(tuning, nodes, n, 0, 1 << 20, DType::f32),
                  all_reduce_bytes(tuning, {}, n, 0, 1 << 20, DType::f32));
        EXPECT_EQ(reduce_scatter_bytes(tuning, nodes, 0, bounds, DType::f32),
                  reduce_scatter_bytes(tuning, {}, 0, bounds, DType::f32));
        EXPECT_EQ(all_gather_bytes(tuning, nodes, 0, bounds, DType::f32),
                  all_gather_bytes(tuning, {}, 0, bounds, DType::f32));
      }
    }
  }
}

TEST(Tuning, PartsCoverEverything) {
  for (int64_t count : {0, 1, 15, 16, 17, 1000, 4096, 123457}) {
    for (int parts = 1; parts < 20; ++parts) {
      EXPECT_EQ(part_bound(count, parts, 0), 0);
      EXPECT_EQ(part_bound(count, parts, parts), count);
      for (int r = 0; r < parts; ++r) EXPECT_LE(part_bound(count, parts, r), part_bound(count, parts, r + 1));
    }
  }
}

// One random case: sizes, cuts and types, on `nodes` x `local` ranks.
void check_case(uint64_t seed, int nodes, int local, DType dtype) {
  std::mt19937_64 random(seed);
  const int n = nodes * local;
  const int64_t count = random_count(random, 40000);
  const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
  const std::vector<Buffer> all = contributions(dtype, count, seed, n);
  const bool wide = dtype == DType::bf16 && random() % 2 == 0, accumulate = random() % 2 == 0;
  CommTuning tuning = only(Algorithm::kTwoLevel);
  tuning.chunk_bytes = 64 << (random() % 10);
  std::vector<std::vector<char>> results(static_cast<size_t>(n));
  std::mutex mutex;
  run_ranks(
      n,
      [&](Progress& progress) {
        WireCounters counters;
        Communicator group(progress, all_ranks(n), 7, Site::kDpGradient, &counters, blocks(nodes, local), tuning);
        HostStream stream;
        const int me = group.rank();
        const std::vector<int> on = blocks(nodes, local);
        const auto expect_bytes = [&](int64_t bytes) {
          std::lock_guard lock(mutex);
          EXPECT_EQ(counters.wire_bytes, bytes);
          counters = {};
        };
        // all-reduce: two roundings of a partial sum (node, total) to the wire's type
        Buffer data(dtype, count);
        data.fill(seed, me);
        group.all_reduce(data.view(), ReduceKind::kSum, stream).wait(stream);
        expect_bytes(all_reduce_bytes(tuning, on, n, me, count, dtype));
        double worst = 0.0;
        const auto compare = [&](double got, double start, int64_t i, int hops) {
          double sum = start, magnitude = std::abs(start);
          for (const Buffer& b : all) sum += b.get(i), magnitude += std::abs(b.get(i));
          const double over = std::abs(got - sum) - sum_tolerance(dtype, n + 1, magnitude, hops);
          worst = test::worse(worst, over);
        };
        for (int64_t i = 0; i < count; ++i) compare(data.get(i), 0.0, i, 2);
        // reduce-scatter into a buffer of its own
        const int64_t first = bounds[static_cast<size_t>(me)], mine = bounds[static_cast<size_t>(me) + 1] - first;
        Buffer whole(dtype, count), out(wide ? DType::f32 : dtype, mine), before(wide ? DType::f32 : dtype, mine);
        whole.fill(seed, me), out.fill(seed + 99, me), before.fill(seed + 99, me);
        group.reduce_scatter(whole.view(), bounds, out.view(), accumulate, stream).wait(stream);
        expect_bytes(reduce_scatter_bytes(tuning, on, me, bounds, dtype));
        for (int64_t i = 0; i < mine; ++i) compare(out.get(i), accumulate ? before.get(i) : 0.0, first + i, 2);
        // all-gather
        Buffer gathered(dtype, count), part(dtype, mine);
        for (int64_t i = 0; i < mine; ++i) part.set(i, all[static_cast<size_t>(me)].get(first + i));
        group.all_gather(part.view(), gathered.view(), bounds, stream).wait(stream);
        expect_bytes(all_gather_bytes(tuning, on, me, bounds, dtype));
        bool same = true;
        for (int r = 0; r < n; ++r)
          for (int64_t i = bounds[static_cast<size_t>(r)]; i < bounds[static_cast<size_t>(r) + 1]; ++i)
            same = same && gathered.get(i) == all[static_cast<size_t>(r)].get(i);
        std::lock_guard lock(mutex);
        EXPECT_LE(worst, 0.0);
        EXPECT_TRUE(same);
        results[static_cast<size_t>(me)] = data.bytes();
      },
      seed);
  for (const std::vector<char>& r : results) EXPECT_EQ(r, results[0]) << "ranks differ";
}

TEST(TwoLevel, RandomRaggedCases) {
  const std::pair<int, int> grids[] = {{2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 4}};
  const DType types[] = {DType::f32, DType::bf16, DType::f64};
  for (uint64_t seed = 1; seed <= 45; ++seed) {
    SCOPED_TRACE(seed);
    check_case(seed, grids[seed % 5].first, grids[seed % 5].second, types[seed % 3]);
    if (HasFailure()) return;
  }
}

// The closed forms of the other algorithms, on ragged bounds.
TEST(Bytes, EqualTheCounters) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    std::mt19937_64 random(seed * 31);
    const int n = 2 + static_cast<int>(random() % 5);
    const int64_t count = random_count(random, 30000);
    const std::vector<int64_t> bounds = ragged_bounds(random, count, n);
    CommTuning tuning = only(seed % 2 == 0 ? Algorithm::kRing : Algorithm::kDirect);
    tuning.chunk_bytes = 512;
    const int root = static_cast<int>(random() % static_cast<uint64_t>(n));
    std::mutex mutex;
    run_ranks(n, [&](Progress& progress) {
      WireCounters counters;
      Communicator group(progress, all_ranks(n), 7, Site::kDpGradient, &counters, {}, tuning);
      HostStream stream;
      const int me = group.rank();
      const auto expect_bytes = [&](const char* verb, int64_t bytes) {
        std::lock_guard lock(mutex);
        EXPECT_EQ(counters.wire_bytes, bytes) << verb << " seed " << seed << " rank " << me;
        counters = {};
      };
      Buffer whole(DType::f32, count);
      whole.fill(seed, me);
      const int64_t first = bounds[static_cast<size_t>(me)], mine = bounds[static_cast<size_t>(me) + 1] - first;
      group.all_reduce(whole.view(), ReduceKind::kSum, stream).wait(stream);
      expect_bytes("all_reduce", all_reduce_bytes(tuning, {}, n, me, count, DType::f32));
      group.all_gather(whole.view().element_range(first, mine), whole.view(), bounds, stream).wait(stream);
      expect_bytes("all_gather", all_gather_bytes(tuning, {}, me, bounds, DType::f32));
      group.reduce_scatter(whole.view(), bounds, whole.view().element_range(first, mine), false, stream).wait(stream);
      expect_bytes("reduce_scatter", reduce_scatter_bytes(tuning, {}, me, bounds, DType::f32));
      group.broadcast(whole.view(), root, stream).wait(stream);
      expect_bytes("broadcast", broadcast_bytes(n, me, root, count * 4));
      std::vector<int64_t> to_bounds;
      for (int r = 0; r <= n; ++r) to_bounds.push_back(mine * r);
      Buffer to(DType::f32, mine * n);
      group.all_to_all(whole.view(), bounds, to.view(), to_bounds, stream).wait(stream);
      expect_bytes("all_to_all", all_to_all_bytes(me, bounds, DType::f32));
    });
  }
}

}  // namespace
}  // namespace thinwire::two_level_test
