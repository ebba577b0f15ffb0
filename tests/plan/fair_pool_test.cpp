// Max-min fair rates: textbook cases by hand, and its two laws over random pools.
#include "engine/run/plan/fair_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace thinwire::fair_pool_test {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
using Use = FairPool::Use;

int add(FairPool& pool, double amount, std::vector<Use> uses, double limit = kNoLimit, double weight = 1.0,
        int owner = 0) {
  return pool.add(0.0, amount, limit, weight, uses.data(), static_cast<int>(uses.size()), owner);
}

TEST(FairPool, ThreeFlowsOverTwoLinks) {
  FairPool pool;
  const int narrow = pool.add_resource(1.0), wide = pool.add_resource(10.0);
  const int both = add(pool, 100, {{narrow, 1}, {wide, 1}}), first = add(pool, 100, {{narrow, 1}}),
            second = add(pool, 100, {{wide, 1}});
  EXPECT_DOUBLE_EQ(pool.rate(both), 0.5);
  EXPECT_DOUBLE_EQ(pool.rate(first), 0.5);
  EXPECT_DOUBLE_EQ(pool.rate(second), 9.5);  // what the one over both links cannot use
}

TEST(FairPool, ThreadsShareCores) {
  FairPool pool;
  const int cores = pool.add_resource(2.0);
  // One thread alone has a core, not two; three of them have two thirds each, a rank with two threads counts twice.
  const int alone = add(pool, 1.0, {{cores, 1}}, 1.0, 1.0, 7);
  EXPECT_DOUBLE_EQ(pool.rate(alone), 1.0);
  const int other = add(pool, 4.0, {{cores, 1}}, 2.0, 2.0);
  EXPECT_DOUBLE_EQ(pool.rate(alone), 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(pool.rate(other), 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(pool.next(), 1.5);
  EXPECT_EQ(pool.advance(1.5), std::vector<int>{7});
  EXPECT_DOUBLE_EQ(pool.next(), 1.5 + (4.0 - 2.0) / 2.0);
}

TEST(FairPool, OneWorkForManyRanks) {
  FairPool pool;
  const int nic = pool.add_resource(8.0);
  const int folded = add(pool, 1.0, {{nic, 4.0}});  // four ranks that send as much through one NIC
  EXPECT_DOUBLE_EQ(pool.rate(folded), 2.0);
}

TEST(FairPool, BusyCoresAreSlower) {
  FairPool pool;
  const int cores = pool.add_resource(2.0);
  const FairPool::Use use{cores, 1.0};
  const int alone = pool.add(0.0, 1.0, 1.0, 1.0, &use, 1, 0, {1.5, 1.0});
  EXPECT_DOUBLE_EQ(pool.rate(alone), 1.0);
  const int beside = pool.add(0.0, 1.0, 1.0, 1.0, &use, 1);
  EXPECT_DOUBLE_EQ(pool.rate(alone), 1.0 / 1.5);
  EXPECT_DOUBLE_EQ(pool.rate(beside), 1.0);  // another op, which minds nobody
}

TEST(FairPool, WhoTakesTurnsIsSlowerStill) {
  FairPool pool;
  const FairPool::Use use{pool.add_resource(1.0), 1.0};
  const int first = pool.add(0.0, 1.0, 1.0, 1.0, &use, 1, 0, {1.0, 1.25});
  EXPECT_DOUBLE_EQ(pool.rate(first), 1.0);
  const int light = pool.add(0.0, 1e-3, 1.0, 1.0, &use, 1);  // a thread that moves messages
  EXPECT_DOUBLE_EQ(pool.rate(first), 0.5);
  const int second = pool.add(0.0, 1.0, 1.0, 1.0, &use, 1, 0, {1.0, 1.25});
  EXPECT_DOUBLE_EQ(pool.rate(first), 1.0 / 3.0 / 1.25);
  EXPECT_DOUBLE_EQ(pool.rate(second), 1.0 / 3.0 / 1.25);
  EXPECT_DOUBLE_EQ(pool.rate(light), 1.0 / 3.0);
}

// Nothing is used beyond its capacity, and nobody could have more but from who has as little or less.
TEST(FairPool, LawsOverRandomPools) {
  std::mt19937 random(7);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    FairPool pool;
    std::vector<double> capacity;
    for (int r = 0; r < 1 + draw(5); ++r) capacity.push_back(1.0 + draw(20)), pool.add_resource(capacity.back());
    std::vector<std::vector<Use>> uses;
    std::vector<int> works;
    std::vector<double> limits;
    for (int w = 0; w < 1 + draw(8); ++w) {
      std::vector<Use> mine;
      for (int r = 0; r < static_cast<int>(capacity.size()); ++r)
        if (draw(2) == 0) mine.push_back({r, 1.0 + draw(3)});
      limits.push_back(draw(3) == 0 ? 0.5 + draw(4) : mine.empty() ? 1.0 : kNoLimit);
      works.push_back(add(pool, 1.0, mine, limits.back()));
      uses.push_back(mine);
    }
    std::vector<double> used(capacity.size(), 0.0);
    for (size_t w = 0; w < works.size(); ++w)
      for (const Use& use : uses[w]) used[static_cast<size_t>(use.resource)] += use.share * pool.rate(works[w]);
    for (size_t r = 0; r < capacity.size(); ++r) EXPECT_LE(used[r], capacity[r] * (1 + 1e-9));
    for (size_t w = 0; w < works.size(); ++w) {
      const double mine = pool.rate(works[w]);
      bool held = mine >= limits[w] * (1 - 1e-9);
      for (const Use& use : uses[w]) {
        const auto r = static_cast<size_t>(use.resource);
        if (used[r] < capacity[r] * (1 - 1e-9)) continue;
        bool largest = true;
        for (size_t v = 0; v < works.size(); ++v)
          for (const Use& other : uses[v])
            if (other.resource == use.resource) largest = largest && pool.rate(works[v]) <= mine * (1 + 1e-9);
        held = held || largest;
      }
      EXPECT_TRUE(held) << "round " << round << ", work " << w << " at " << mine;
    }
  }
}

}  // namespace
}  // namespace thinwire::fair_pool_test
