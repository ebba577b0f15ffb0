// One thread runs all ranks, poll by poll: large worlds start and vote, and what a vote costs is counted.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <vector>

#include "parallel/collective/communicator.h"
#include "tests/comm/allocation_count.h"
#include "tests/comm/local_group.h"

namespace thinwire::stepped_world_test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Ranks with an engine each and one group of all, driven by the calling thread.
class SteppedWorld {
 public:
  explicit SteppedWorld(int size, uint64_t seed = 0) : world_(size, seed), all_(all_ranks(size)) {
    for (int r = 0; r < size; ++r) ranks_.push_back(std::make_unique<Rank>(world_, all_, r));
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  Communicator& group(int rank) { return ranks_[static_cast<size_t>(rank)]->group; }
  const WireCounters& counters(int rank) const { return ranks_[static_cast<size_t>(rank)]->counters; }

  // Issues `verb(rank)` on every rank and polls all of them until every ticket is over.
  template <typename Verb>
  void run(const Verb& verb) {
    std::vector<Ticket> tickets;
    for (int r = 0; r < size(); ++r) tickets.push_back(verb(r));
    const Clock::time_point start = Clock::now();
    for (int left = size(); left > 0 && seconds_since(start) < 60.0;) {
      left = 0;
      for (int r = 0; r < size(); ++r) {
        if (!tickets[static_cast<size_t>(r)].open()) continue;
        ++left;
        ranks_[static_cast<size_t>(r)]->progress.poll();
      }
    }
    for (Ticket& ticket : tickets) {
      ASSERT_FALSE(ticket.open()) << "a rank did not get its result";
      ticket.wait_on_host();
    }
  }

 private:
  struct Rank {
    Rank(LocalWorld& world, const std::vector<int>& all, int rank)
        : transport(world.make_endpoint(rank)),
          progress(*transport, {.thread = false, .spin_us = 0}),
          group(progress, all, 0, Site::kControl, &counters) {}
    std::unique_ptr<Transport> transport;
    Progress progress;
    WireCounters counters;
    Communicator group;
  };
  LocalWorld world_;
  std::vector<int> all_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// As the control site does: agree on the largest of numbers, add up doubles in rank order.
void vote(SteppedWorld& world) {
  HostStream host;
  const int n = world.size();
  std::vector<int64_t> largest(static_cast<size_t>(n));
  std::vector<double> sums(static_cast<size_t>(n));
  double expected = 0.0;
  for (int r = 0; r < n; ++r) {
    largest[static_cast<size_t>(r)] = (r * 37 + 11) % n;
    sums[static_cast<size_t>(r)] = 1.0 / (r + 1);
    expected = r == 0 ? 1.0 : expected + 1.0 / (r + 1);
  }
  world.run([&](int r) {
    return world.group(r).all_reduce(View(&largest[static_cast<size_t>(r)], DType::i64, {1}), ReduceKind::kMax, host);
  });
  world.run([&](int r) {
    return world.group(r).all_reduce(View(&sums[static_cast<size_t>(r)], DType::f64, {1}), ReduceKind::kSum, host);
  });
  int64_t most = 0;
  for (int r = 0; r < n; ++r) most = std::max<int64_t>(most, (r * 37 + 11) % n);
  for (int r = 0; r < n; ++r) {
    ASSERT_EQ(largest[static_cast<size_t>(r)], most) << "rank " << r;
    ASSERT_EQ(sums[static_cast<size_t>(r)], expected) << "rank " << r;
  }
}

// CPU time of this process: what else runs here does not count.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

TEST(SteppedWorld, TwoThousandRanksStartAndVote) {
  const double start = cpu_seconds();
  SteppedWorld world(2048);
  const double started = cpu_seconds() - start;
  vote(world);
  const double voted = cpu_seconds() - start;
  std::printf("2048 ranks: started after %.2f s of a core, voted after %.2f s\n", started, voted);
  EXPECT_LT(voted, 10.0);
}

TEST(SteppedWorld, AnyNumberOfRanksInAnyOrder) {
  for (int n : {2, 3, 5, 8, 13, 33, 64}) {
    for (uint64_t seed : {0, 1, 2}) {
      SteppedWorld world(n, seed);
      vote(world);
    }
  }
}

// At most 2 ceil(log2 n) messages of a rank for each vote.
TEST(SteppedWorld, MessagesOfAVote) {
  HostStream host;
  for (int n = 2; n <= 64; ++n) {
    SteppedWorld world(n);
    const int most = 2 * std::bit_width(static_cast<unsigned>(n - 1));
    int64_t before = 0;
    for (const bool sum : {false, true}) {
      std::vector<double> values(static_cast<size_t>(n), 1.0);
      world.run([&](int r) {
        return world.group(r).all_reduce(View(&values[static_cast<size_t>(r)], DType::f64, {1}),
                                         sum ? ReduceKind::kSum : ReduceKind::kMax, host);
      });
      int64_t largest = 0;  // of both votes so far
      for (int r = 0; r < n; ++r) largest = std::max(largest, world.counters(r).messages);
      EXPECT_LE(largest - before, most) << n << " ranks, " << (sum ? "sum" : "max");
      EXPECT_EQ(values[0], sum ? n : 1.0);
      before = largest;
    }
  }
}

// What transports, engines and groups hold for a rank of the world, beside what they hold anyway: measured as the
// difference between two sizes, after a vote.
TEST(SteppedWorld, StateOfARankPerRankOfTheWorld) {
  const auto bytes_of = [](int ranks) {
    const int64_t before = live_bytes_of_the_process();
    SteppedWorld world(ranks);
    vote(world);
    return static_cast<double>(live_bytes_of_the_process() - before) / ranks;
  };
  const double small = bytes_of(256), large = bytes_of(1024);
  const double slope = (large - small) / (1024 - 256);
  std::printf("bytes per rank: %.0f of 256, %.0f of 1024: %.1f for each further rank of the world\n", small, large,
              slope);
  EXPECT_LE(slope, 64.0);
}

}  // namespace
}  // namespace thinwire::stepped_world_test
