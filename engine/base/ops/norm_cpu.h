// LayerNorm and RMSNorm with residual addition and dropout fused, on the CPU; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void norm_forward_cpu(Exec& exec, const NormForward& op);
void norm_backward_cpu(Exec& exec, const NormBackward& op);

}  // namespace thinwire
