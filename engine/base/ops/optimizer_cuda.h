// The optimizers: one launch over flat buffers, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void adamw_cuda(Exec& exec, const AdamW& op);
void momentum_share_cuda(Exec& exec, const MomentumShare& op);
void sgd_cuda(Exec& exec, const Sgd& op);

}  // namespace thinwire
