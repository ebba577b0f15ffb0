// Sums in double on the CPU; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void weighted_sum_cpu(Exec& exec, const WeightedSum& op);
void sum_squares_cpu(Exec& exec, const SumSquares& op);

}  // namespace thinwire
