// Whether ranks that should hold the same weights do: what Megatron calls the weight hash across replicas.
#pragma once

#include <cstdint>

#include "engine/run/train/replica.h"

namespace thinwire {

// Hashes the weights that the next forward pass will compute with, tensor by tensor (sharded ones are gathered, coded
// publications finished), and compares them over all ranks that hold the same part of a tensor: data-parallel replicas,
// tensor-parallel ranks for what is not cut, first and last stage for tied embeddings. All ranks call it between
// updates. Weights and states stay what they are; where publications round stochastically, those that an update leaves
// for the next forward pass draw other random numbers when they are finished here. Throws AgreedError(kInternal) naming
// tensor and ranks.
void check_weight_hashes(Replica& replica, int64_t step);

}  // namespace thinwire
