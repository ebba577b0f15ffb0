// Rotary position embedding on the CPU; contract in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void rotary_cpu(Exec& exec, const Rotary& op);

}  // namespace thinwire
