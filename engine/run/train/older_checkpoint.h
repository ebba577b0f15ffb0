// What checkpoints of earlier versions lack, and what stands in for it.
#pragma once

#include "engine/run/checkpoint/generation.h"
#include "optim/optimizer.h"

namespace thinwire {

// Before a load that takes the moments: where the manifest does not say how many updates they have seen, it was all
// that the run had applied, but for a variance that 1-bit Adam had frozen (momentum/frozen_at). These counts are set
// here, and `options` then asks the checkpoint for none.
void supply_moment_updates(const Manifest& manifest, LoadOptions& options, Optimizer& optimizer);

}  // namespace thinwire
