// Rotary position embedding, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void rotary_cuda(Exec& exec, const Rotary& op);

}  // namespace thinwire
