// Puts the messages of a pipeline between the works of its stages, and gives every micro-batch its slot.
#pragma once

#include <vector>

#include "parallel/schedule/schedules.h"

namespace thinwire {

// orders[s]: the works of stage s. Returns the nodes of every stage, kExchange and compute, with slots; and the number
// of slots per chunk. CHECKs that the orders can be executed.
//
// All messages get one order that is the same on all ranks, and every rank has its own ones in that order: then even
// ranks that do one exchange at a time and wait for it cannot wait in a circle. The order is that in which messages
// meet in a simulation with equal costs. Within it, a send stands directly behind the work that makes it where the
// order permits, and a receive in front of the work during which it arrives, if its slot is free by then.
std::vector<Plan> place_exchanges(const PipelineShape& shape, const std::vector<std::vector<Work>>& orders);

}  // namespace thinwire
