// In which order a stage computes under each schedule; messages are placed around this order afterwards.
#pragma once

#include <vector>

#include "parallel/schedule/plan.h"

namespace thinwire {

struct Work {
  NodeKind kind = NodeKind::kForward;
  int micro = 0;
  int chunk = 0;
};

// Throws Error(kBadConfig) for a shape that no plan exists for: chunks without kInterleaved, sizes below one.
void check_shape(const PipelineShape& shape);

// Forwards and backwards of one stage in order. Sources: GPipe (Huang et al. 2019) with backwards in the order of the
// forwards; 1F1B and interleaved 1F1B as in Megatron-LM (Narayanan et al. 2021); ZB-H1 (Qi et al. 2023).
std::vector<Work> compute_order(const PipelineShape& shape, int stage);

// Puts the messages of a pipeline between the works of its stages, and gives every micro-batch its slot
// (exchanges.cpp).
//
// orders[s]: the works of stage s. Returns the nodes of every stage, kExchange and compute, with slots; and the number
// of slots per chunk. CHECKs that the orders can be executed.
//
// All messages get one order that is the same on all ranks, and every rank has its own ones in that order: then even
// ranks that do one exchange at a time and wait for it cannot wait in a circle. The order is that in which messages
// meet in a simulation with equal costs. Within it, a send stands directly behind the work that makes it where the
// order permits, and a receive in front of the work during which it arrives, if its slot is free by then.
std::vector<Plan> place_exchanges(const PipelineShape& shape, const std::vector<std::vector<Work>>& orders);

}  // namespace thinwire
