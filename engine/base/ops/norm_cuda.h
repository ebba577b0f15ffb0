// LayerNorm and RMSNorm with residual addition and dropout fused, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void norm_forward_cuda(Exec& exec, const NormForward& op);
void norm_backward_cuda(Exec& exec, const NormBackward& op);

}  // namespace thinwire
