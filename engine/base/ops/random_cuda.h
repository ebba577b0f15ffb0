// Normal random numbers, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void fill_normal_cuda(Exec& exec, const FillNormal& op);

}  // namespace thinwire
