// The cheapest partition of a chain into consecutive ranges, by dynamic programming.
#include "parallel/schedule/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr double kRounding = 1e-9;  // costs that differ by less, relative to the whole, are taken as equal

class Partition {
 public:
  Partition(const std::vector<double>& costs, int parts, double first_cost, double last_cost)
      : layers_(static_cast<int>(costs.size())), parts_(parts), first_(first_cost), last_(last_cost) {
    sums_.push_back(0.0);
    for (double cost : costs) sums_.push_back(sums_.back() + cost);
  }

  std::vector<LayerRange> best() const {
    const double limit = smallest_maximum() + kRounding * (sums_.back() + first_ + last_);
    // rest[part][from]: least sum of squared sizes of parts part .. that cover the layers from `from` on. Of all
    // partitions within the limit the most even one has the least.
    constexpr int64_t kImpossible = std::numeric_limits<int64_t>::max();
    std::vector<std::vector<int64_t>> rest(size(parts_ + 1), std::vector<int64_t>(size(layers_ + 1), kImpossible));
    rest[size(parts_)][size(layers_)] = 0;
    for (int part = parts_ - 1; part >= 0; --part)
      for (int from = part; from < layers_; ++from)
        for (int to = from + 1; to <= layers_ && fits(part, from, to, limit); ++to) {
          const int64_t behind = rest[size(part + 1)][size(to)];
          if (behind != kImpossible)
            rest[size(part)][size(from)] = std::min(rest[size(part)][size(from)], behind + squared(to - from));
        }
    std::vector<LayerRange> ranges;
    for (int part = 0, from = 0; part < parts_; ++part) {
      int to = layers_;  // larger parts first
      while (!fits(part, from, to, limit) || rest[size(part + 1)][size(to)] == kImpossible ||
             rest[size(part + 1)][size(to)] + squared(to - from) != rest[size(part)][size(from)])
        --to;
      ranges.push_back({from, to - from});
      from = to;
    }
    return ranges;
  }

 private:
  static size_t size(int index) { return static_cast<size_t>(index); }
  static int64_t squared(int64_t x) { return x * x; }

  double cost(int part, int from, int to) const {
    return sums_[size(to)] - sums_[size(from)] + (part == 0 ? first_ : 0.0) + (part == parts_ - 1 ? last_ : 0.0);
  }
  bool fits(int part, int from, int to, double limit) const { return cost(part, from, to) <= limit; }

  double smallest_maximum() const {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    // reach[to]: least maximum of parts 0 .. part that cover the layers before `to`.
    std::vector<double> reach(size(layers_ + 1), kNone);
    reach[0] = 0.0;
    for (int part = 0; part < parts_; ++part) {
      std::vector<double> next(size(layers_ + 1), kNone);
      for (int to = part + 1; to <= layers_; ++to)
        for (int from = to - 1; from >= part; --from)
          next[size(to)] = std::min(next[size(to)], std::max(reach[size(from)], cost(part, from, to)));
      reach = std::move(next);
    }
    return reach.back();
  }

  int layers_, parts_;
  double first_, last_;
  std::vector<double> sums_;
};

}  // namespace

std::vector<LayerRange> partition_layers(const std::vector<double>& costs, int parts, double first_cost,
                                         double last_cost) {
  if (parts < 1) throw_bad_config("layers cannot be split into " + std::to_string(parts) + " parts");
  if (costs.size() < static_cast<size_t>(parts))
    throw_bad_config(std::to_string(costs.size()) + " layers cannot be split into " + std::to_string(parts) +
                     " pipeline parts of at least one layer each: choose fewer stages or virtual chunks");
  const auto bad = [](double cost) { return !(cost >= 0.0) || !std::isfinite(cost); };
  if (std::any_of(costs.begin(), costs.end(), bad) || bad(first_cost) || bad(last_cost))
    throw_bad_config("the cost of a layer must be a finite number that is not negative");
  return Partition(costs, parts, first_cost, last_cost).best();
}

}  // namespace thinwire
