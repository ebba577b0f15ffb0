// Sums in double, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void weighted_sum_cuda(Exec& exec, const WeightedSum& op);
void sum_squares_cuda(Exec& exec, const SumSquares& op);

}  // namespace thinwire
