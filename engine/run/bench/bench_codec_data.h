// Real numbers for `bench codec`: gradients, weights and activations of a tiny model that the bench trains by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compression/codec.h"

namespace thinwire {

struct DataSet {
  std::string name;
  std::vector<float> values;
  std::vector<MatrixShape> matrices;  // of `values`, for matrix codecs; vectors lie between them
};

struct TrainedData {
  std::vector<DataSet> sets;  // gradient, activation, weight
  int64_t steps = 0, parameters = 0;
  double first_loss = 0.0, last_loss = 0.0;
};

// Trains GPT-2 of 4 layers, 128 wide, on tokens of a random Markov chain (1.4 nats a token; made in process, the same
// ones each time) for `steps` steps. gradient: of all parameters, mean of the last step, before clipping;
// activation: the residual stream between the second and the third layer, as a pipeline of two stages would send it,
// for the tokens of several micro-batches; weight: all parameters behind the last step.
TrainedData train_for_data(int64_t steps);

}  // namespace thinwire
