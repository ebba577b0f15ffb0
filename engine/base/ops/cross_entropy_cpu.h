// Softmax cross entropy on the CPU; contract in ops.h. A target outside the valid columns is a CHECK failure (unless
// its row has weight 0: its target is not read).
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void cross_entropy_cpu(Exec& exec, const CrossEntropy& op);

}  // namespace thinwire
