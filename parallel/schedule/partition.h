// Which layers each pipeline stage and each of its chunks gets.
#pragma once

#include <cstdint>
#include <vector>

namespace thinwire {

// What the cost of a layer is: 1, its parameters, or its compute time.
enum class PartitionMethod : uint8_t { kUniform, kParameters, kTime };

struct LayerRange {
  int64_t first = 0, count = 0;
};

// Splits layers 0 .. costs.size()-1 into `parts` consecutive ranges (virtual stages, in the order of the layers) so
// that the largest cost of a range is as small as possible; first_cost and last_cost are what embedding and head add to
// the first and last range, in the unit of `costs`. With equal costs and none added: sizes differ by at most one,
// larger ones first. Every range gets at least one layer; fewer layers than parts is an Error(kBadConfig).
std::vector<LayerRange> partition_layers(const std::vector<double>& costs, int parts, double first_cost = 0.0,
                                         double last_cost = 0.0);

}  // namespace thinwire
