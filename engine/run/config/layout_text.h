// A layout in words, for logs and for --dry-run.
#pragma once

#include <string>

#include "engine/run/config/run_config.h"

namespace thinwire {

// "ZeRO-3 + secondary node (hpZ)", "3-level partition (pair, node, global)", "replicated" ...
std::string placement_text(const PlacementLevels& levels);

// One line: "16 ranks = 2 stages (interleaved, 2 chunks) x 4 data (ZeRO-1) x 2 tensor (sequence parallel); 8
// micro-batches".
std::string layout_text(const RunConfig& config);

}  // namespace thinwire
