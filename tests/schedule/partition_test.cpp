// Partitions of layers against all possible ones.
#include "parallel/schedule/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "engine/base/core/error.h"

namespace thinwire::partition_test {
namespace {

std::vector<int64_t> sizes_of(const std::vector<LayerRange>& ranges) {
  std::vector<int64_t> sizes;
  int64_t next = 0;
  for (const LayerRange& range : ranges) {
    EXPECT_EQ(range.first, next) << "ranges are consecutive";
    next += range.count;
    sizes.push_back(range.count);
  }
  return sizes;
}

double maximum(const std::vector<double>& costs, const std::vector<int64_t>& sizes, double first, double last) {
  double most = 0.0;
  size_t layer = 0;
  for (size_t part = 0; part < sizes.size(); ++part) {
    double sum = (part == 0 ? first : 0.0) + (part + 1 == sizes.size() ? last : 0.0);
    for (int64_t i = 0; i < sizes[part]; ++i) sum += costs[layer++];
    most = std::max(most, sum);
  }
  return most;
}

void all_cuts(int64_t layers, size_t parts, std::vector<int64_t>& sizes, const std::function<void()>& visit) {
  if (parts == 0) {
    if (layers == 0) visit();
    return;
  }
  for (int64_t size = 1; size + static_cast<int64_t>(parts) - 1 <= layers; ++size) {
    sizes.push_back(size);
    all_cuts(layers - size, parts - 1, sizes, visit);
    sizes.pop_back();
  }
}

// Of the cuts with the smallest maximum the most even sizes, of those the one with larger parts first. Whole numbers as
// costs, so that equal sums are equal.
std::vector<int64_t> best_cut(const std::vector<double>& costs, int parts, double first, double last) {
  std::vector<int64_t> sizes, best;
  double best_maximum = 0.0;
  int64_t best_squares = 0;
  all_cuts(static_cast<int64_t>(costs.size()), static_cast<size_t>(parts), sizes, [&] {
    const double most = maximum(costs, sizes, first, last);
    const int64_t squares = std::inner_product(sizes.begin(), sizes.end(), sizes.begin(), int64_t{0});
    const bool better = best.empty() || most < best_maximum ||
                        (most == best_maximum && (squares < best_squares || (squares == best_squares && sizes > best)));
    if (better) best = sizes, best_maximum = most, best_squares = squares;
  });
  return best;
}

TEST(Partition, EqualsTheBestOfAllCuts) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const int layers = std::uniform_int_distribution<int>(1, 10)(random);
    const int parts = std::uniform_int_distribution<int>(1, layers)(random);
    const int top = std::uniform_int_distribution<int>(0, 6)(random);  // small ones: many ties
    std::uniform_int_distribution<int> cost(0, top);
    std::vector<double> costs;
    for (int i = 0; i < layers; ++i) costs.push_back(cost(random));
    const double first = cost(random) * 2, last = cost(random) * 2;
    EXPECT_EQ(sizes_of(partition_layers(costs, parts, first, last)), best_cut(costs, parts, first, last))
        << "round " << round;
  }
}

TEST(Partition, FractionsReachTheSmallestMaximum) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> cost(0.0, 3.0);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> costs(std::uniform_int_distribution<size_t>(4, 11)(random));
    for (double& value : costs) value = cost(random);
    const double first = cost(random), last = cost(random),
                 whole = std::reduce(costs.begin(), costs.end()) + first + last;
    const auto sizes = sizes_of(partition_layers(costs, 4, first, last));
    EXPECT_LE(maximum(costs, sizes, first, last),
              maximum(costs, best_cut(costs, 4, first, last), first, last) + 2e-9 * whole);
  }
}

TEST(Partition, EqualCostsDifferByAtMostOneLargerFirst) {
  for (double cost : {1.0, 0.1, 1.0 / 3.0, 12345.678})  // not representable: rounding must not spoil the evenness
    for (int layers = 1; layers <= 50; ++layers)
      for (int parts = 1; parts <= std::min(layers, 12); ++parts) {
        std::vector<int64_t> expected;
        for (int part = 0; part < parts; ++part) expected.push_back(layers / parts + (part < layers % parts ? 1 : 0));
        EXPECT_EQ(sizes_of(partition_layers(std::vector<double>(static_cast<size_t>(layers), cost), parts)), expected)
            << layers << " layers of " << cost << " in " << parts;
      }
}

TEST(Partition, HeadAndEmbeddingTakeLayersAway) {
  const std::vector<double> costs(12, 1.0);
  EXPECT_EQ(sizes_of(partition_layers(costs, 4, 0.0, 2.0)), (std::vector<int64_t>{4, 3, 3, 2}));
  EXPECT_EQ(sizes_of(partition_layers(costs, 4, 1.0, 3.0)), (std::vector<int64_t>{3, 4, 4, 1}));
}

TEST(Partition, RefusesWhatCannotBeCut) {
  EXPECT_THROW(partition_layers({1.0, 1.0}, 3), Error);
  EXPECT_THROW(partition_layers({1.0, 1.0}, 0), Error);
  EXPECT_THROW(partition_layers({1.0, -1.0}, 1), Error);
  EXPECT_THROW(partition_layers({1.0, std::nan("")}, 1), Error);
}

}  // namespace
}  // namespace thinwire::partition_test
