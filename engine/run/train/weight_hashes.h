// Whether ranks that should hold the same weights do: what Megatron calls the weight hash across replicas.
#pragma once

#include <cstdint>

#include "engine/run/train/replica.h"

namespace thinwire {

// Hashes the weights that the next forward pass will compute with, tensor by tensor (sharded ones are gathered, coded
// parameter all-gathers finished), and compares them over all ranks that hold the same part of a tensor: data-parallel
// replicas, tensor-parallel ranks for what is not sharded (not on GPUs without `deterministic`: each such rank then has
// sums of its own), first and last stage for tied embeddings. All ranks call it between steps. Weights and states stay
// what they are; where parameter all-gathers round stochastically, those that a step leaves for the next forward pass
// draw other random numbers when they are finished here. Throws AgreedError(kInternal) naming tensor and ranks.
void check_weight_hashes(Replica& replica, int64_t step);

}  // namespace thinwire
