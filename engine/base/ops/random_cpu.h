// Normal random numbers on the CPU; contract in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void fill_normal_cpu(Exec& exec, const FillNormal& op);

}  // namespace thinwire
