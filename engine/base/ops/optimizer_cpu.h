// The optimizers on CPU: one pass over flat buffers (contract in ops.h).
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

// Element-wise: the bits do not depend on the number of threads, nor on how [0, n) is divided into decay spans or
// calls. CHECKs that all buffers are fp32 of one length, that working is bf16 / fp16 of that length or empty, that
// state is one StepState and that the spans cover [0, n) in order without gaps.
void adamw_cpu(Exec& exec, const AdamW& op);
void momentum_share_cpu(Exec& exec, const MomentumShare& op);
void sgd_cpu(Exec& exec, const Sgd& op);

}  // namespace thinwire
